"""The wire format of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.event_writer import encode_json, finish_reason, public_id, usage_of
from frontend.text_stream import TextStream


class ChatEvents:
    """`chat.completion.chunk` events, and the `chat.completion` object."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        reply = self._reply = streams[0].reply
        head = encode_json(
            {
                "id": public_id(reply),
                "object": "chat.completion.chunk",
                "created": reply.created,
                "model": reply.model,
                "system_fingerprint": None,
            }
        )
        usage = b',"usage":null' if reply.include_usage else b""
        self._head = head[:-1] + b',"choices":['
        self._tail = b"]" + usage + b"}"
        self._before_text = [
            self._head + b'{"index":%d,"delta":{"content":' % i for i in range(len(streams))
        ]
        self._after_text = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def opening(self) -> list[bytes]:
        return [
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":""}' % i
            + b',"logprobs":null,"finish_reason":null}'
            + self._tail
            for i in range(len(self._streams))
        ]

    def text(self, stream: TextStream, text: str) -> bytes:
        return self._before_text[stream.reply.choice_idx] + encode_json(text) + self._after_text

    def finish(self, stream: TextStream) -> bytes:
        return (
            self._head
            + b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":' % stream.reply.choice_idx
            + encode_json(finish_reason(stream))
            + b"}"
            + self._tail
        )

    def closing(self) -> list[bytes]:
        if not self._reply.include_usage:
            return []
        return [self._head + b'],"usage":' + encode_json(usage_of(self._streams)) + b"}"]

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(
            {
                "id": public_id(self._reply),
                "object": "chat.completion",
                "created": self._reply.created,
                "model": self._reply.model,
                "system_fingerprint": None,
                "choices": [
                    {
                        "index": stream.reply.choice_idx,
                        "message": {"role": "assistant", "content": text, "refusal": None},
                        "logprobs": None,
                        "finish_reason": finish_reason(stream),
                    }
                    for stream, text in zip(self._streams, texts, strict=True)
                ],
                "usage": usage_of(self._streams),
            }
        )
