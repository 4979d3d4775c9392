"""The events of a response's stream, by OpenAI's names."""

from __future__ import annotations

from frontend.surfaces.responses.response_answer import (
    OutputText,
    ReasoningText,
    Response,
    ResponseItem,
)
from frontend.text.logprob_view import TokenLogprobView
from frontend.text.wire_struct import Count, TypedStruct


class ResponseEvent(TypedStruct, frozen=True, kw_only=True):
    """Any of them; they are numbered from 0 on."""

    sequence_number: Count

    @classmethod
    def event_name(cls) -> str:
        """As in `type`."""
        name = cls.__struct_config__.tag
        assert isinstance(name, str)
        return name


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """The first event."""

    response: Response


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The second one."""

    response: Response


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The last one."""

    response: Response


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last one, where the tokens were all that was asked for."""

    response: Response


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The last one, of a response that failed or was cancelled."""

    response: Response


class ItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item has begun."""

    output_index: Count
    item: ResponseItem


class ItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """No more of an item comes."""

    output_index: Count
    item: ResponseItem


class PartAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The content of an item has begun."""

    item_id: str
    output_index: Count
    content_index: Count
    part: OutputText | ReasoningText


class PartDone(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """No more of an item's content comes."""

    item_id: str
    output_index: Count
    content_index: Count
    part: OutputText | ReasoningText


class OutputTextDelta(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of what the model says."""

    delta: str
    logprobs: list[TokenLogprobView]
    item_id: str
    output_index: Count
    content_index: Count


class OutputTextDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All that the model says in an item."""

    item_id: str
    output_index: Count
    content_index: Count
    text: str
    logprobs: list[TokenLogprobView]


class ThoughtDelta(ResponseEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    delta: str
    item_id: str
    output_index: Count
    content_index: Count


class ThoughtDone(ResponseEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All that the model thinks in an item."""

    item_id: str
    output_index: Count
    content_index: Count
    text: str


class ArgumentsDelta(
    ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of a call's arguments."""

    delta: str
    item_id: str
    output_index: Count


class ArgumentsDone(
    ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """All of a call's arguments."""

    item_id: str
    output_index: Count
    name: str
    arguments: str


EVENT_KINDS = (
    *(ResponseCreated, ResponseInProgress, ResponseCompleted, ResponseIncomplete, ResponseFailed),
    *(ItemAdded, ItemDone, PartAdded, PartDone),
    *(OutputTextDelta, OutputTextDone, ThoughtDelta, ThoughtDone, ArgumentsDelta, ArgumentsDone),
)
