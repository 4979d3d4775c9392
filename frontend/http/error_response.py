"""Errors, JSON and the headers of streams over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.responses import Response

from frontend.text.event_writer import error_body
from shared.errors import (
    AuthenticationFailed,
    QueueFull,
    RateLimited,
    RequestError,
    RequestTimeout,
    ServiceUnavailable,
)

_UNBUFFERED = (
    # A proxy that compresses holds events back until a block is full.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
EVENT_STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), *_UNBUFFERED)
JSON_LINES_HEADERS = ((b"content-type", b"application/x-ndjson"), *_UNBUFFERED)

ErrorBody = Callable[[RequestError], bytes]  # JSON in the shape of one API


def json_response(
    body: bytes, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """JSON that is already encoded."""
    return Response(body, status_code, headers=headers, media_type="application/json")


def error_response(
    error: RequestError,
    headers: Mapping[str, str] | None = None,
    body: ErrorBody = error_body,
) -> Response:
    """The error object of an API, with the status and headers that belong to it."""
    return json_response(
        body(error), error.status_code, {**error_headers(error), **(headers or {})}
    )


def error_headers(error: RequestError) -> dict[str, str]:
    """What tells a client how to go on; SDKs read `x-should-retry`."""
    match error:
        case RequestError(is_final=True):
            return {"x-should-retry": "false"}
        case AuthenticationFailed():
            return {"www-authenticate": "Bearer"}
        case RequestTimeout():
            return {"connection": "close"}
        case _:
            return retry_headers(error)


def retry_headers(error: RequestError) -> dict[str, str]:
    """When it is worth asking again; over NATS too."""
    match error:
        case RateLimited():
            return {"Retry-After": str(error.retry_after_s), **error.headers}
        case QueueFull() | ServiceUnavailable():
            return {"Retry-After": str(error.retry_after_s)}
        case _:
            return {}
