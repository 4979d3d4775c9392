"""The headers of every stream of events."""

_UNBUFFERED = (
    # A proxy that compresses holds events back until a block is full.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
EVENT_STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), *_UNBUFFERED)
JSON_LINES_HEADERS = ((b"content-type", b"application/x-ndjson"), *_UNBUFFERED)
