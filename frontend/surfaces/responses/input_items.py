"""Items of a conversation as /v1/responses takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from frontend.audio.audio_source import AudioData
from frontend.fields.request_body import convert
from frontend.images.source import Detail, ImageUrl
from frontend.surfaces.responses.output_items import output_text
from frontend.surfaces.responses.response_answer import (
    AudioFile,
    CallItem,
    CallOutputItem,
    InputAudio,
    InputImage,
    InputMessage,
    InputText,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseItem,
    Role,
    SummaryText,
)
from frontend.surfaces.tools.calls import InvalidJson, read_arguments
from frontend.surfaces.tools.tool_shapes import NotHere
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.subjects import new_rid

MAX_ITEMS = 4096
IMAGE, AUDIO = "input_image", "input_audio"
_MESSAGE = {"type": "message"}  # what an item is that does not say
_Text = Annotated[str, msgspec.Meta(min_length=1)]

_Item = dict[str, Any]


class _Given(msgspec.Struct, tag_field="type"):
    """What a client says, told by its `type`."""


class GivenText(_Given, tag="input_text"):
    """A text."""

    text: str


class GivenOutput(GivenText, tag="output_text"):
    """A text of an earlier answer."""


class GivenSummary(GivenText, tag="summary_text"):
    """A summary of earlier reasoning."""


class GivenReasoning(GivenText, tag="reasoning_text"):
    """Earlier reasoning."""


class GivenRefusal(_Given, tag="refusal"):
    """What was said in place of an answer."""

    text: str = msgspec.field(name="refusal")


class GivenImage(_Given, tag=IMAGE):
    """An image by its URL."""

    image_url: ImageUrl
    detail: Detail | None = None
    file_id: NotHere = None


class GivenAudio(_Given, tag=AUDIO):
    """Audio."""

    input_audio: AudioData


_Part = GivenText | GivenOutput | GivenRefusal | GivenImage | GivenAudio | str
_Input = InputText | InputImage | InputAudio


class MessageItem(_Given, tag="message"):
    """What somebody said."""

    role: Role
    content: str | list[_Part]


class PastCallItem(_Given, tag="function_call"):
    """A call of an earlier answer; its arguments are an object in JSON."""

    call_id: _Text
    name: _Text
    arguments: str


class PastOutputItem(_Given, tag="function_call_output"):
    """What a call returned."""

    call_id: _Text
    output: str | list[_Part]


class PastReasoningItem(_Given, tag="reasoning"):
    """What was thought before an earlier answer."""

    summary: str | list[GivenSummary | str] | None = None
    content: str | list[GivenReasoning | str] | None = None
    encrypted_content: NotHere = None


GivenItem = MessageItem | PastCallItem | PastOutputItem | PastReasoningItem


def input_items(value: Any, name: str = "input", max_items: int = MAX_ITEMS) -> list[_Item]:
    """The checked items of a request, each with an id. Raises InvalidRequest."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if value is None:
        raise InvalidRequest(f"'{name}' is required", param=name, code="missing_field")
    if not isinstance(value, list):
        raise InvalidRequest(
            f"'{name}' must be a string or a list of items", param=name, code="invalid_type"
        )
    if not 1 <= len(value) <= max_items:
        raise InvalidRequest(
            f"'{name}' has {len(value)} items, must have 1 to {max_items}", param=name
        )
    told = [_MESSAGE | item if isinstance(item, dict) else item for item in value]
    given = convert(told, list[GivenItem], name)
    items: list[_Item] = msgspec.to_builtins(
        [_item(item, f"{name}[{i}]") for i, item in enumerate(given)]
    )
    return items


def check_calls(items: list[_Item], num_earlier: int, name: str = "input") -> None:
    """Every output is of a call before it. Raises InvalidRequest.

    The first `num_earlier` items were checked when they came: a call may have been deleted since.
    """
    call_ids = set()
    for i, item in enumerate(items):
        if item["type"] == "function_call":
            call_ids.add(item["call_id"])
        elif (
            i >= num_earlier
            and item["type"] == "function_call_output"
            and item["call_id"] not in call_ids
        ):
            where = f"{name}[{i - num_earlier}].call_id"
            raise InvalidRequest(
                f"'{where}' is {item['call_id'][:100]!r}, and no function_call before it has this "
                "call_id",
                param=where,
            )


def _item(item: GivenItem, where: str) -> ResponseItem:
    match item:
        case MessageItem():
            return _message(item, where)
        case PastCallItem():
            return _call(item, where)
        case PastOutputItem():
            return CallOutputItem(
                id=f"fco_{new_rid()}",
                type="function_call_output",
                call_id=item.call_id,
                output=_output(item.output, f"{where}.output"),
                status="completed",
            )
        case PastReasoningItem():
            return _reasoning(item, where)


def _message(item: MessageItem, where: str) -> InputMessage:
    parts: Sequence[_Input | OutputText] = _parts(item.content, f"{where}.content")
    if item.role == "assistant":
        parts = [_said(part, f"{where}.content[{i}]") for i, part in enumerate(parts)]
    return InputMessage(
        id=f"msg_{new_rid()}", type="message", role=item.role, status="completed", content=parts
    )


def _said(part: _Input | OutputText, where: str) -> OutputText:
    """What the assistant said."""
    if isinstance(part, InputImage | InputAudio):
        told = "an image" if isinstance(part, InputImage) else "audio"
        raise UnsupportedParameter(where, f"is {told}: an assistant has said text")
    return output_text(part.text)


def _parts(content: str | list[_Part], where: str) -> list[_Input]:
    parts: list[_Part] = [content] if isinstance(content, str) else content
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(parts)]


def _part(part: _Part, where: str) -> _Input:
    match part:
        case GivenImage():
            return _image(part, where)
        case GivenAudio():
            file = part.input_audio
            return InputAudio(input_audio=AudioFile(data=file.data, format=file.format))
    return InputText(text=part if isinstance(part, str) else part.text)


def _image(part: GivenImage, where: str) -> InputImage:
    if part.file_id is not None:
        raise UnsupportedParameter(f"{where}.file_id", "is not supported: only URLs are")
    return InputImage(image_url=part.image_url, detail=part.detail or "auto", file_id=None)


def _call(item: PastCallItem, where: str) -> CallItem:
    try:
        value = read_arguments(item.arguments or "{}")
    except InvalidJson:  # a call that was cut: the template gets what there was
        value = {}
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"'{where}.arguments' must be an object in JSON",
            param=f"{where}.arguments",
            code="invalid_type",
        )
    return CallItem(
        id=f"fc_{new_rid()}",
        type="function_call",
        call_id=item.call_id,
        name=item.name,
        arguments=item.arguments,
        status="completed",
    )


def _output(value: str | list[_Part], where: str) -> str | list[_Input]:
    """Texts alone are one, one a line."""
    parts = _parts(value, where)
    texts = [part.text for part in parts if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _reasoning(item: PastReasoningItem, where: str) -> ReasoningItem:
    if item.encrypted_content:
        raise UnsupportedParameter(
            f"{where}.encrypted_content", "is not supported: reasoning is told in 'content'"
        )
    return ReasoningItem(
        id=f"rs_{new_rid()}",
        type="reasoning",
        summary=[SummaryText(text=text) for text in _texts(item.summary)],
        content=[ReasoningText(text=text) for text in _texts(item.content)],
        status="completed",
    )


def _texts(given: str | Sequence[GivenText | str] | None) -> list[str]:
    parts = [given] if isinstance(given, str) else given or ()
    return [part if isinstance(part, str) else part.text for part in parts if part]
