"""The wire format of /generate: pieces of text and ids as they come, and how far they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from frontend.surfaces.embeddings.embedding_events import rows_of, vector_of
from frontend.surfaces.generate.generate_answer import FinishObject, GeneratedText, MetaInfo
from frontend.text.event_writer import encode_json, public_id
from frontend.text.logprob_view import MAX_EVENT_LOGPROBS, native_logprobs
from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TokenTexts
from frontend.text.usage import num_cached_tokens
from shared.protocol.logprobs import NO_RANK


class GenerateEvents:
    """One object per piece: `text` and `output_ids` are what is new, `meta_info` the state.

    The whole answer has the same shape; a list of prompts, or several choices, make a list of it.
    """

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._streams = streams
        self._texts = texts  # None when nobody asks for logprobs
        self._is_list = len(streams) > 1 or streams[0].reply.is_list

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        return encode_json(self._piece(stream, text, finished=False))

    def finish(self, stream: TextStream) -> bytes:
        return encode_json(self._piece(stream, "", finished=True))

    def closing(self) -> list[bytes]:
        return []

    def whole(self, texts: Sequence[str]) -> bytes:
        pieces = [
            self._object(stream, text, stream.all_tokens, finished=True)
            for stream, text in zip(self._streams, texts, strict=True)
        ]
        return encode_json(pieces if self._is_list else pieces[0])

    def _piece(self, stream: TextStream, text: str, *, finished: bool) -> GeneratedText:
        limit = None if self._texts is None or finished else MAX_EVENT_LOGPROBS
        return self._object(stream, text, stream.emit_tokens(limit), finished=finished)

    def _object(
        self, stream: TextStream, text: str, tokens: slice, *, finished: bool
    ) -> GeneratedText:
        meta_info = self.meta_info(stream, finished=finished)
        logprobs = self.logprobs(stream, tokens)
        return GeneratedText(
            text=text,
            output_ids=stream.token_ids[tokens],
            meta_info=replace(meta_info, **logprobs) if logprobs else meta_info,
            index=stream.reply.choice_idx if self._is_list else UNSET,
        )

    def meta_info(self, stream: TextStream, *, finished: bool) -> MetaInfo:
        """The state of a text, without logprobs."""
        return MetaInfo(
            id=stream.reply.rid or public_id(stream.reply),
            finish_reason=_finish_object(stream) if finished else None,
            prompt_tokens=stream.reply.num_prompt_tokens,
            completion_tokens=stream.position,
            cached_tokens=num_cached_tokens(stream),
            hidden_states=_hidden_states(stream) if finished else UNSET,
        )

    def logprobs(self, stream: TextStream, tokens: slice) -> dict[str, Any]:
        """Fields of `meta_info`: of these tokens; the prompt's come with the first of them."""
        reply, texts = stream.reply, self._texts
        if texts is None:
            return {}
        view: dict[str, Any] = {}
        if reply.num_prompt_top is not None and not tokens.start:
            prompt = stream.prompt_records(reply.num_prompt_top, with_named=True)
            prompt = prompt[reply.prompt_start :]
            prompt = [prompt[0]._replace(rank=NO_RANK), *prompt[1:]] if prompt else prompt
            view |= native_logprobs(prompt, texts, "input", reply.num_logprob_ids)
        if reply.num_top is not None:
            records = stream.records(tokens)
            view |= native_logprobs(records, texts, "output", reply.num_logprob_ids)
        return view


def _finish_object(stream: TextStream) -> FinishObject | None:
    finish = stream.finish
    if finish is None:
        return None
    return FinishObject(
        type=finish.reason.value,
        matched=UNSET if finish.matched is None else finish.matched,
        length=stream.position if finish.reason == "length" else UNSET,
    )


def _hidden_states(stream: TextStream) -> list[Any] | UnsetType:
    if stream.finish is None or not stream.finish.embedding:
        return UNSET
    num_prompt_rows = stream.reply.num_prompt_tokens
    rows = rows_of(vector_of(stream), num_prompt_rows + max(0, stream.position - 1))
    return [rows[:num_prompt_rows], *rows[num_prompt_rows:]]
