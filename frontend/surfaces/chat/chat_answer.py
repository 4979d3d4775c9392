"""What /v1/chat/completions answers: whole, and as events of a stream."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from frontend.text.logprob_view import ChatLogprobs, PromptLogprob
from frontend.text.usage import Usage
from frontend.text.wire_struct import Count, WireStruct


class CalledFunction(WireStruct, frozen=True, kw_only=True):
    """Which function is called, and with what."""

    name: str
    arguments: str  # JSON


class ToolCall(WireStruct, frozen=True, kw_only=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(WireStruct, frozen=True, kw_only=True):
    """A whole answer. Reasoning has the names of both conventions."""

    role: Literal["assistant"]
    refusal: str | None
    content: str | None  # None: there are only calls, or reasoning
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(WireStruct, frozen=True, kw_only=True):
    """One of the answers."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | UnsetType | None = UNSET
    matched_stop: str | int | UnsetType | None = UNSET
    cumulative_logprob: float | UnsetType = UNSET  # of what a beam search has found
    token_ids: list[Count] | UnsetType = UNSET


class ChatCompletion(WireStruct, frozen=True, kw_only=True):
    """The answer that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: Count  # unix seconds
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET


class FunctionDelta(WireStruct, frozen=True, kw_only=True):
    """A piece of a call's arguments; its first one has the name."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(WireStruct, frozen=True, kw_only=True):
    """A piece of a call; its first one has the id."""

    index: Count
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(WireStruct, frozen=True, kw_only=True):
    """What is new of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


NO_DELTA = ChatDelta()


class ChatChunkChoice(WireStruct, frozen=True, kw_only=True):
    """What is new of one of the answers."""

    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    matched_stop: str | int | UnsetType | None = UNSET
    token_ids: list[Count] | UnsetType = UNSET


class ChatChunk(WireStruct, frozen=True, kw_only=True):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count  # unix seconds
    model: str
    system_fingerprint: str | None
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET
