"""The wire format of /infill, in llama.cpp's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from frontend.surfaces.infill.infill_answer import Infill
from frontend.text.event_writer import encode_json
from frontend.text.text_stream import TextStream
from frontend.text.usage import num_cached_tokens
from shared.protocol.finish import FinishReason


class InfillEvents:
    """A request has one text; the last event holds no more of it, and says how it ended."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        return encode_json(
            Infill(
                index=0,
                content=text,
                tokens=[],
                stop=False,
                tokens_predicted=stream.position,
                tokens_evaluated=stream.reply.num_prompt_tokens,
            )
        )

    def finish(self, stream: TextStream) -> bytes:
        return _last(stream, "")

    def closing(self) -> list[bytes]:
        return []

    def whole(self, texts: Sequence[str]) -> bytes:
        return _last(self._streams[0], texts[0])


def _last(stream: TextStream, text: str) -> bytes:
    assert stream.finish is not None
    matched = stream.finish.matched
    stop_type: Literal["eos", "limit", "word"] = "eos"
    if stream.finish.reason is FinishReason.LENGTH:
        stop_type = "limit"
    elif isinstance(matched, str):
        stop_type = "word"
    return encode_json(
        Infill(
            index=0,
            content=text,
            tokens=[],
            stop=True,
            tokens_predicted=stream.position,
            tokens_evaluated=stream.reply.num_prompt_tokens,
            model=stream.reply.model,
            stop_type=stop_type,
            stopping_word=matched if isinstance(matched, str) else "",
            tokens_cached=num_cached_tokens(stream),
            truncated=False,
        )
    )
