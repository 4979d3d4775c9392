"""What /v1/responses answers: responses, and the items of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.text.logprob_view import TokenLogprobView
from frontend.text.usage import TokenUsage
from frontend.text.wire_struct import Count, TypedStruct, WireStruct

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Role = Literal["user", "assistant", "system", "developer"]


class AudioFile(WireStruct, frozen=True, kw_only=True):
    """A file of audio."""

    data: str  # in base64
    format: str


class InputText(TypedStruct, frozen=True, kw_only=True, tag="input_text"):
    """A text that the model is told."""

    text: str


class InputImage(TypedStruct, frozen=True, kw_only=True, tag="input_image"):
    """An image that it is shown."""

    image_url: str
    detail: str
    file_id: None


class InputAudio(TypedStruct, frozen=True, kw_only=True, tag="input_audio"):
    """Audio that it hears."""

    input_audio: AudioFile


class OutputText(TypedStruct, frozen=True, kw_only=True, tag="output_text"):
    """A text that the model says."""

    text: str
    annotations: list[Any]  # there are none
    logprobs: list[TokenLogprobView]


class SummaryText(TypedStruct, frozen=True, kw_only=True, tag="summary_text"):
    """A summary of what the model thought."""

    text: str


class ReasoningText(TypedStruct, frozen=True, kw_only=True, tag="reasoning_text"):
    """What the model thought."""

    text: str


class ResponseItem(WireStruct, frozen=True, kw_only=True):
    """A part of a conversation: one of the kinds below, whose second field says which."""

    id: str


class InputMessage(ResponseItem, frozen=True, kw_only=True):
    """What somebody said, as the request tells it."""

    type: Literal["message"]
    role: Role
    status: ItemStatus
    content: Sequence[InputText | InputImage | InputAudio | OutputText]


class OutputMessage(ResponseItem, frozen=True, kw_only=True):
    """What the model says."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]
    status: ItemStatus


class ReasoningItem(ResponseItem, frozen=True, kw_only=True):
    """What the model thought."""

    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: ItemStatus


class CallItem(ResponseItem, frozen=True, kw_only=True):
    """A call that the model makes."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str  # JSON
    status: ItemStatus


class CallOutputItem(ResponseItem, frozen=True, kw_only=True):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText | InputImage | InputAudio]  # parts where there is more than text
    status: ItemStatus


ITEM_KINDS = (InputMessage, OutputMessage, ReasoningItem, CallItem, CallOutputItem)
# As they are kept.
_Items = Annotated[
    list[Any],
    msgspec.Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/ResponseItem"}}),
]


class ResponseError(WireStruct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class IncompleteDetails(WireStruct, frozen=True, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class Response(WireStruct, frozen=True, kw_only=True):
    """A response as of now: behind its output stands what was asked for."""

    id: str
    object: Literal["response"]
    created_at: Count  # unix seconds
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseItem]
    background: bool
    instructions: str | None
    max_output_tokens: Count | None
    metadata: dict[str, str]
    previous_response_id: str | None
    conversation: dict[str, str] | None  # its `id`
    store: bool
    temperature: float
    text: dict[str, Any]
    top_logprobs: Count
    top_p: float
    max_tool_calls: int | None
    parallel_tool_calls: bool
    reasoning: dict[str, Any] | None
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: str
    usage: TokenUsage | UnsetType = UNSET  # of one that has ended


class InputItems(WireStruct, frozen=True, kw_only=True):
    """A page of the conversation that a response answers."""

    object: Literal["list"]
    data: _Items
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(WireStruct, frozen=True, kw_only=True):
    """The tokens of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class ResponseDeleted(WireStruct, frozen=True, kw_only=True):
    """A response that is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ConversationObject(WireStruct, frozen=True, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: Count  # unix seconds
    metadata: dict[str, str]


class ConversationDeleted(WireStruct, frozen=True, kw_only=True):
    """A conversation that is gone."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
