"""Items of a conversation as /v1/responses takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from frontend.images.source import image_source
from frontend.surfaces.responses.output_items import output_text
from frontend.surfaces.responses.response_answer import (
    CallItem,
    CallOutputItem,
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
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.subjects import new_rid

ROLES: tuple[Role, ...] = get_args(Role)
KINDS = ("message", "function_call", "function_call_output", "reasoning")
MAX_ITEMS = 4096
IMAGE = "input_image"
_OF_CALL = ("name", "call_id", "arguments")
_TEXT_KEYS = {
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}

_Item = dict[str, Any]


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
    items: list[_Item] = msgspec.to_builtins(
        [_item(item, f"{name}[{i}]") for i, item in enumerate(value)]
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


def _item(item: Any, where: str) -> ResponseItem:
    if not isinstance(item, dict):
        raise InvalidRequest(f"'{where}' must be an object", param=where, code="invalid_type")
    match item.get("type", "message"):
        case "message":
            return _message(item, where)
        case "function_call":
            return _call(item, where)
        case "function_call_output":
            return _call_output(item, where)
        case "reasoning":
            return _reasoning(item, where)
        case kind:
            raise UnsupportedParameter(
                where, f"is an item of type {str(kind)[:100]!r}, must be one of {', '.join(KINDS)}"
            )


def _message(item: _Item, where: str) -> InputMessage:
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"'{where}.role' is {str(role)[:100]!r}, must be one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    content, where = item.get("content"), f"{where}.content"
    parts: Sequence[InputText | InputImage | OutputText]
    if role == "assistant":
        parts = [output_text(text) for text in _texts(content, where)]
    else:
        parts = _input_parts(content, where)
    return InputMessage(
        id=f"msg_{new_rid()}", type="message", role=role, status="completed", content=parts
    )


def _input_parts(content: Any, where: str) -> list[InputText | InputImage]:
    return [
        _image(part, f"{where}[{i}]")
        if isinstance(part, dict) and part.get("type") == IMAGE
        else InputText(text=_part_text(part, f"{where}[{i}]"))
        for i, part in enumerate(_parts(content, where))
    ]


def _image(part: _Item, where: str) -> InputImage:
    source = image_source(part, where)
    return InputImage(image_url=source.url, detail=part.get("detail") or "auto", file_id=None)


def _call(item: _Item, where: str) -> CallItem:
    name, call_id, arguments = (_required_text(item, key, where) for key in _OF_CALL)
    try:
        value = read_arguments(arguments or "{}")
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
        call_id=call_id,
        name=name,
        arguments=arguments,
        status="completed",
    )


def _call_output(item: _Item, where: str) -> CallOutputItem:
    return CallOutputItem(
        id=f"fco_{new_rid()}",
        type="function_call_output",
        call_id=_required_text(item, "call_id", where),
        output=_output(item.get("output"), f"{where}.output"),
        status="completed",
    )


def _output(value: Any, where: str) -> str | list[InputText | InputImage]:
    """Texts alone are one, one a line."""
    parts = _input_parts(value, where)
    texts = [part.text for part in parts if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _reasoning(item: _Item, where: str) -> ReasoningItem:
    if item.get("encrypted_content"):
        raise UnsupportedParameter(
            f"{where}.encrypted_content", "is not supported: reasoning is told in 'content'"
        )
    summary = _texts(item.get("summary") or [], f"{where}.summary")
    content = _texts(item.get("content") or [], f"{where}.content")
    return ReasoningItem(
        id=f"rs_{new_rid()}",
        type="reasoning",
        summary=[SummaryText(text=text) for text in summary],
        content=[ReasoningText(text=text) for text in content],
        status="completed",
    )


def _required_text(item: _Item, key: str, where: str) -> str:
    value = item.get(key)
    if isinstance(value, str) and (value or key == "arguments"):
        return value
    raise InvalidRequest(
        f"'{where}.{key}' is required, as text",
        param=f"{where}.{key}",
        code="missing_field" if value is None else "invalid_type",
    )


def _texts(content: Any, where: str) -> list[str]:
    """Of a string, or of a list of parts."""
    return [_part_text(part, f"{where}[{i}]") for i, part in enumerate(_parts(content, where))]


def _parts(content: Any, where: str) -> list[Any]:
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise InvalidRequest(
            f"'{where}' must be a string or a list of parts", param=where, code="invalid_type"
        )
    return parts


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in _TEXT_KEYS:
        raise UnsupportedParameter(
            where, f"is a part of type {kind[:100]!r}: only text is supported"
        )
    if isinstance(kind, str) and isinstance(text := part.get(_TEXT_KEYS[kind]), str):
        return text
    raise InvalidRequest(f"'{where}' is not a text part", param=where)
