"""Items of a conversation: as /v1/responses takes and shows them, and as templates read them."""

from __future__ import annotations

from typing import Any

from frontend.responses.stored_response import KeptResponse
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol import FinishReason
from shared.subjects import new_rid

ROLES = ("user", "assistant", "system", "developer")
MAX_ITEMS = 4096

_Item = dict[str, Any]


def input_items(value: Any) -> list[_Item]:
    """The checked `input` of a request, each item with an id. Raises InvalidRequest."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if value is None:
        raise InvalidRequest("'input' is required", param="input", code="missing_field")
    if not isinstance(value, list):
        raise InvalidRequest(
            "'input' must be a string or a list of items", param="input", code="invalid_type"
        )
    if not 1 <= len(value) <= MAX_ITEMS:
        raise InvalidRequest(
            f"'input' has {len(value)} items, must have 1 to {MAX_ITEMS}", param="input"
        )
    return [_item(item, f"input[{i}]") for i, item in enumerate(value)]


def messages_of(items: list[_Item], instructions: str | None) -> list[_Item]:
    """A conversation as chat templates expect it."""
    opening = [] if instructions is None else [{"role": "system", "content": instructions}]
    return opening + [
        {"role": item["role"], "content": "\n".join(_text(part) for part in item["content"])}
        for item in items
    ]


def conversation_of(previous: KeptResponse) -> list[_Item]:
    """All that was said up to the end of a response. Raises InvalidRequest when it has none."""
    record, done = previous.record, previous.done
    if done is None or done.finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
        state = "still runs" if done is None else f"has no answer: {done.finish.reason.value}"
        raise InvalidRequest(
            f"'previous_response_id' names a response that {state}", param="previous_response_id"
        )
    is_whole = done.finish.reason is FinishReason.STOP
    return [*record.items, output_message(record.rid, done.text, is_whole=is_whole)]


def output_message(
    rid: str, text: str, *, is_whole: bool, logprobs: list[_Item] | None = None
) -> _Item:
    """What the model said."""
    return {
        "id": message_id(rid),
        "type": "message",
        "role": "assistant",
        "status": "completed" if is_whole else "incomplete",
        "content": [output_text(text, logprobs)],
    }


def output_text(text: str, logprobs: list[_Item] | None = None) -> _Item:
    """The one part of such a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message_id(rid: str) -> str:
    """Of the one message that a response's output is."""
    return f"msg_{rid}"


def _item(item: Any, where: str) -> _Item:
    if not isinstance(item, dict):
        raise InvalidRequest(f"'{where}' must be an object", param=where, code="invalid_type")
    kind = item.get("type", "message")
    if kind != "message":
        raise UnsupportedParameter(
            where, f"is an item of type {str(kind)[:100]!r}: only messages are supported"
        )
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"'{where}.role' is {str(role)[:100]!r}, must be one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    return {
        "id": f"msg_{new_rid()}",
        "type": "message",
        "role": role,
        "status": "completed",
        "content": _content(item.get("content"), role, f"{where}.content"),
    }


def _content(content: Any, role: str, where: str) -> list[_Item]:
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise InvalidRequest(
            f"'{where}' must be a string or a list of parts", param=where, code="invalid_type"
        )
    texts = [_part_text(part, f"{where}[{i}]") for i, part in enumerate(parts)]
    if role == "assistant":
        return [output_text(text) for text in texts]
    return [{"type": "input_text", "text": text} for text in texts]


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            return text
    elif isinstance(kind, str):
        raise UnsupportedParameter(
            where, f"is a part of type {kind[:100]!r}: only text is supported"
        )
    raise InvalidRequest(f"'{where}' is not a text part", param=where)


def _text(part: _Item) -> str:
    text: str = part["text"]
    return text
