"""The wire format of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.event_writer import encode_json, finish_reason, public_id, usage_of
from frontend.logprob_view import MAX_EVENT_LOGPROBS, chat_logprobs, prompt_logprobs
from frontend.text_stream import TextStream
from frontend.token_texts import TokenTexts


class ChatEvents:
    """`chat.completion.chunk` events, and the `chat.completion` object."""

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._streams = streams
        self._texts = texts  # None when nobody asks for logprobs
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
        self._before_logprobs = b'},"logprobs":'
        self._after_logprobs = b',"finish_reason":null}' + self._tail
        self._after_text = self._before_logprobs + b"null" + self._after_logprobs

    def opening(self) -> list[bytes]:
        return [
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":""}' % i
            + b',"logprobs":null,"finish_reason":null}'
            + self._tail
            for i in range(len(self._streams))
        ]

    def text(self, stream: TextStream, text: str) -> bytes:
        head = self._before_text[stream.reply.choice_idx] + encode_json(text)
        if self._texts is None:
            return head + self._after_text
        logprobs = encode_json(self._logprobs(stream, stream.tell_tokens(MAX_EVENT_LOGPROBS)))
        return head + self._before_logprobs + logprobs + self._after_logprobs

    def finish(self, stream: TextStream) -> bytes:
        logprobs = None if not stream.num_untold else self._logprobs(stream, stream.tell_tokens())
        return (
            self._head
            + b'{"index":%d,"delta":{},"logprobs":' % stream.reply.choice_idx
            + encode_json(logprobs)
            + b',"finish_reason":'
            + encode_json(finish_reason(stream))
            + b"}"
            + self._tail
        )

    def closing(self) -> list[bytes]:
        if not self._reply.include_usage:
            return []
        return [self._head + b'],"usage":' + encode_json(usage_of(self._streams)) + b"}"]

    def _logprobs(self, stream: TextStream, tokens: slice) -> dict[str, Any] | None:
        if self._texts is None or stream.reply.num_top is None:
            return None
        return chat_logprobs(stream.records(tokens), self._texts)

    def _prompt_logprobs(self) -> dict[str, Any]:
        """vLLM's field, beside the choices."""
        stream = self._streams[0]
        if self._texts is None or stream.reply.num_prompt_top is None:
            return {}
        records = stream.prompt_records(stream.reply.num_prompt_top)
        return {"prompt_logprobs": prompt_logprobs(records, self._texts)}

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
                        "logprobs": self._logprobs(stream, stream.all_tokens),
                        "finish_reason": finish_reason(stream),
                    }
                    for stream, text in zip(self._streams, texts, strict=True)
                ],
                "usage": usage_of(self._streams),
                **self._prompt_logprobs(),
            }
        )
