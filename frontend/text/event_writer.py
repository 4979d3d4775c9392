"""What the wire formats have in common: the JSON of each event, most of it built once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TokenTexts
from frontend.text.usage import usage_of
from frontend.text.wire_struct import WireStruct
from shared.errors import RequestError
from shared.protocol.finish import Beam
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.token_ids import unpack_token_ids

encode_json = msgspec.json.Encoder().encode


class ErrorObject(WireStruct, frozen=True, kw_only=True):
    """What is wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(WireStruct, frozen=True, kw_only=True):
    """What is answered in place of anything else."""

    error: ErrorObject


class EventWriter(Protocol):
    """JSON of the events of one group."""

    def opening(self) -> list[bytes]:
        """What comes before any text."""
        ...

    def text(self, stream: TextStream, text: str) -> bytes:
        """Nothing when the text says nothing yet; the stream's mark then stays before it."""
        ...

    def finish(self, stream: TextStream) -> bytes: ...

    def closing(self) -> list[bytes]:
        """What comes after all choices have finished."""
        ...

    def whole(self, texts: Sequence[str]) -> bytes:
        """The answer that is not streamed: the text of every choice, in order."""
        ...


def public_id(reply: ReplyParams) -> str:
    """The `id` that clients see."""
    match reply.surface:
        case Surface.CHAT | Surface.CHAT_BATCH:
            return f"chatcmpl-{reply.group_id}"
        case Surface.COMPLETIONS:
            return f"cmpl-{reply.group_id}"
        case Surface.RESPONSES:
            return f"resp_{reply.group_id}"
        case Surface.SCORE:
            return f"score-{reply.group_id}"
        case Surface.RERANK:
            return f"rerank-{reply.group_id}"
        case Surface.CLASSIFY:
            return f"classify-{reply.group_id}"
        case Surface.POOLING:
            return f"pool-{reply.group_id}"
        case Surface.MESSAGES:
            return f"msg_{reply.group_id}"
        case (
            Surface.GENERATE
            | Surface.GENERATE_SO_FAR
            | Surface.INFILL
            | Surface.FORK
            | Surface.EMBEDDINGS
            | Surface.OLLAMA_CHAT
            | Surface.OLLAMA_GENERATE
            | Surface.OLLAMA_EMBED
            | Surface.TRANSCRIPTION
            | Surface.TRANSLATION
        ):
            return reply.group_id


def head_of(reply: ReplyParams, object_name: str) -> dict[str, Any]:
    """How the objects of OpenAI's completions and chats begin, whole and in pieces."""
    return {
        "id": public_id(reply),
        "object": object_name,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": None,
    }


def usage_tail(streams: Sequence[TextStream], num_reasoning: int | None = None) -> bytes:
    """How each event of a stream ends: with the usage so far, when that is asked for."""
    reply = streams[0].reply
    if reply.continuous_usage:
        return b'],"usage":' + encode_json(usage_of(streams, num_reasoning)) + b"}"
    return b'],"usage":null}' if reply.include_usage else b"]}"


def reports_more_than_text(reply: ReplyParams, texts: TokenTexts | None) -> bool:
    """Whether an event with text has anything in it that was not known before."""
    return texts is not None or reply.tells_token_ids or reply.continuous_usage


def token_ids_field(stream: TextStream, tokens: slice) -> dict[str, Any]:
    """vLLM's field of a choice, where it is asked for."""
    return {"token_ids": stream.token_ids[tokens]} if stream.reply.tells_token_ids else {}


def beam_fields(stream: TextStream, beam: Beam) -> dict[str, Any]:
    """The fields of a choice that a beam search has found, beside its text."""
    fields: dict[str, Any] = {
        "logprobs": None,
        "finish_reason": beam.reason.value,
        "cumulative_logprob": beam.cumulative_logprob,
    }
    if stream.reply.tells_token_ids:
        fields["token_ids"] = unpack_token_ids(beam.token_ids)
    return fields


def prompt_ids_field(reply: ReplyParams) -> dict[str, Any]:
    """vLLM's field of a chat, or of a choice of completions."""
    if not reply.tells_token_ids:
        return {}
    return {"prompt_token_ids": unpack_token_ids(reply.prompt_ids)}


def end_reason(stream: TextStream) -> str:
    """Why a stream has finished, as OpenAI spells it."""
    assert stream.finish is not None
    return stream.finish.reason.value


def stop_fields(stream: TextStream) -> dict[str, Any]:
    """What ended a choice, in vLLM's field and in SGLang's, which names end-of-turn tokens too."""
    matched = None if stream.finish is None else stream.finish.matched
    eos_ids = stream.reply.eos_token_ids
    is_eos = isinstance(matched, int) and (eos_ids is None or matched in eos_ids)
    return {"stop_reason": None if is_eos else matched, "matched_stop": matched}


def error_body(error: RequestError) -> bytes:
    """OpenAI's error object."""
    return encode_json(
        ErrorAnswer(
            error=ErrorObject(
                message=error.message, type=error.error_type, param=error.param, code=error.code
            )
        )
    )
