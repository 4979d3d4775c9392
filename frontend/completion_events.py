"""The wire format of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.event_writer import encode_json, finish_reason, public_id, usage_of
from frontend.logprob_view import MAX_EVENT_LOGPROBS, completion_logprobs, prompt_logprobs
from frontend.text_stream import TextStream
from frontend.token_texts import TextOffsets, TokenTexts


class CompletionEvents:
    """`text_completion` objects, whole and in pieces. With `echo` the prompt comes first."""

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._streams = streams
        self._texts = texts  # None when nobody asks for logprobs
        self._offsets: list[TextOffsets | None] = [None] * len(streams)  # until the first tokens
        reply = self._reply = streams[0].reply
        head = encode_json(
            {
                "id": public_id(reply),
                "object": "text_completion",
                "created": reply.created,
                "model": reply.model,
                "system_fingerprint": None,
            }
        )
        usage = b',"usage":null' if reply.include_usage else b""
        self._head = head[:-1] + b',"choices":['
        self._tail = b"]" + usage + b"}"
        self._before_text = [self._head + b'{"index":%d,"text":' % i for i in range(len(streams))]
        self._before_logprobs = b',"logprobs":'
        self._after_logprobs = b',"finish_reason":null}' + self._tail
        self._after_text = self._before_logprobs + b"null" + self._after_logprobs

    def opening(self) -> list[bytes]:
        return [
            self._before_text[idx] + encode_json(stream.reply.echo) + self._after_text
            for idx, stream in enumerate(self._streams)
            if stream.reply.echo
        ]

    def text(self, stream: TextStream, text: str) -> bytes:
        head = self._before_text[stream.reply.choice_idx] + encode_json(text)
        if self._texts is None:
            return head + self._after_text
        logprobs = encode_json(self._logprobs(stream, stream.tell_tokens(MAX_EVENT_LOGPROBS)))
        return head + self._before_logprobs + logprobs + self._after_logprobs

    def finish(self, stream: TextStream) -> bytes:
        has_news = stream.num_untold or not stream.told_position
        logprobs = self._logprobs(stream, stream.tell_tokens()) if has_news else None
        return (
            self._before_text[stream.reply.choice_idx]
            + b'"","logprobs":'
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
        """Of output tokens; with `echo` those of the prompt come before the first of them."""
        reply = stream.reply
        if self._texts is None or reply.num_top is None:
            return None
        prompt = stream.prompt_records(reply.num_top) if reply.echo_logprobs else []
        offsets = self._offsets[reply.choice_idx]
        if offsets is None:
            offsets = self._offsets[reply.choice_idx] = TextOffsets(self._texts)
            if tokens.start:  # a resumed stream: the client has what is before
                before = [record.token_id for record in prompt]
                for token_id in before + stream.token_ids[: tokens.start]:
                    offsets.next(token_id)
        records = stream.records(tokens)
        if not tokens.start:
            records = prompt + records
        return completion_logprobs(records, self._texts, offsets)

    def _prompt_logprobs(self, stream: TextStream) -> dict[str, Any]:
        """vLLM's field of a choice."""
        if self._texts is None or stream.reply.num_prompt_top is None:
            return {}
        records = stream.prompt_records(stream.reply.num_prompt_top)
        return {"prompt_logprobs": prompt_logprobs(records, self._texts)}

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(
            {
                "id": public_id(self._reply),
                "object": "text_completion",
                "created": self._reply.created,
                "model": self._reply.model,
                "system_fingerprint": None,
                "choices": [
                    {
                        "index": stream.reply.choice_idx,
                        "text": stream.reply.echo + text,
                        "logprobs": self._logprobs(stream, stream.all_tokens),
                        "finish_reason": finish_reason(stream),
                        **self._prompt_logprobs(stream),
                    }
                    for stream, text in zip(self._streams, texts, strict=True)
                ],
                "usage": usage_of(self._streams),
            }
        )
