"""What /v1/messages answers: whole, and as the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from frontend.text.event_writer import encode_json
from frontend.text.wire_struct import Count, TypedStruct, WireStruct
from shared.errors import RequestError

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class TextBlock(TypedStruct, frozen=True, kw_only=True, tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(TypedStruct, frozen=True, kw_only=True, tag="thinking"):
    """What it thinks before."""

    thinking: str
    signature: str


class ToolUseBlock(TypedStruct, frozen=True, kw_only=True, tag="tool_use"):
    """A call that it makes."""

    id: str
    name: str
    input: Any  # an object, unless the model wrote something else


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(WireStruct, frozen=True, kw_only=True):
    """What the output tokens are."""

    thinking_tokens: Count


class MessageUsage(WireStruct, frozen=True, kw_only=True):
    """Tokens; what the prefix cache had counts apart."""

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class Message(WireStruct, frozen=True, kw_only=True):
    """The answer that is not streamed; at the start of a stream nothing has stopped it yet."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(WireStruct, frozen=True, kw_only=True):
    """The tokens of a prompt."""

    input_tokens: Count


class MessageStart(TypedStruct, frozen=True, kw_only=True, tag="message_start"):
    """The first event of a stream."""

    message: Message


class BlockStart(TypedStruct, frozen=True, kw_only=True, tag="content_block_start"):
    """A block begins, and is empty."""

    index: Count
    content_block: Block


class TextPiece(TypedStruct, frozen=True, kw_only=True, tag="text_delta"):
    """More of what the model says."""

    text: str


class ThinkingPiece(TypedStruct, frozen=True, kw_only=True, tag="thinking_delta"):
    """More of what it thinks."""

    thinking: str


class InputPiece(TypedStruct, frozen=True, kw_only=True, tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


Piece = TextPiece | ThinkingPiece | InputPiece


class BlockDelta(TypedStruct, frozen=True, kw_only=True, tag="content_block_delta"):
    """More of the block that is open."""

    index: Count
    delta: Piece


class BlockStop(TypedStruct, frozen=True, kw_only=True, tag="content_block_stop"):
    """No more of a block comes."""

    index: Count


class MessageOutcome(WireStruct, frozen=True, kw_only=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedStruct, frozen=True, kw_only=True, tag="message_delta"):
    """What is known of a message at its end."""

    delta: MessageOutcome
    usage: MessageUsage


class MessageStop(TypedStruct, frozen=True, kw_only=True, tag="message_stop"):
    """The last event of a stream."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class MessageErrorDetails(WireStruct, frozen=True, kw_only=True):
    """Our own code, and the field that is wrong."""

    error_code: str | None
    param: str | None


class MessageErrorObject(WireStruct, frozen=True, kw_only=True):
    """What is wrong, in Anthropic's words and in ours."""

    type: str
    message: str
    details: MessageErrorDetails


class MessageError(WireStruct, frozen=True, kw_only=True):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: MessageErrorObject


def message_error_body(error: RequestError) -> bytes:
    """The error object as JSON."""
    status = error.status_code
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = MessageErrorDetails(error_code=error.code, param=error.param)
    told = MessageErrorObject(type=kind, message=error.message, details=details)
    return encode_json(MessageError(type="error", error=told))
