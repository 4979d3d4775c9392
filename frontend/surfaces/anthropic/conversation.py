"""`system` and `messages` as messages of a chat: blocks become content, calls and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from frontend.fields.request_body import check_num_messages
from shared.errors import InvalidRequest, UnsupportedParameter

_ROLES = ("user", "assistant", "system")


class Block(NamedTuple):
    """A part of a message, and where it stands in the body."""

    where: str
    kind: str
    fields: dict[str, Any]

    def text(self, name: str) -> str:
        """A field that must be there. Raises InvalidRequest."""
        value = self.fields.get(name)
        if isinstance(value, str):
            return value
        where = f"{self.where}.{name}"
        if value is None:
            raise InvalidRequest(f"'{where}' is required", param=where, code="missing_field")
        raise InvalidRequest(
            f"'{where}' is {json.dumps(value)[:100]}, must be text",
            param=where,
            code="invalid_type",
        )


class Turn(NamedTuple):
    """What one side says until the other one does."""

    role: str
    blocks: list[Block]


def chat_messages(system: Any, messages: Any) -> list[dict[str, Any]]:
    """Raises InvalidRequest."""
    made = []
    if system is not None:
        text = _joined(_blocks(system, "system"))
        made += [{"role": "system", "content": text}] if text else []
    for turn in _turns(messages):
        made += list(_MESSAGES_OF[turn.role](turn.blocks))
    return made


def continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the last turn is the beginning of the answer. Raises InvalidRequest."""
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if last.get("tool_calls"):
        raise InvalidRequest(
            "'messages' ends with a tool_use block, and its tool_result is missing",
            param="messages",
        )
    return True


def _turns(messages: Any) -> list[Turn]:
    """Neighbours of one role are one turn."""
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(
            "'messages' is required and holds at least one message",
            param="messages",
            code="missing_field" if messages is None else "invalid_value",
        )
    check_num_messages(len(messages))
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise InvalidRequest(
                f"'{where}.role' is {json.dumps(role)[:100]}, must be user, assistant or system",
                param=f"{where}.role",
            )
        blocks = _blocks(message.get("content"), f"{where}.content")
        if turns and turns[-1].role == role:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(Turn(role, blocks))
    return turns


def _blocks(content: Any, where: str) -> list[Block]:
    if isinstance(content, str):
        return [Block(where, "text", {"text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{where}' is required: text, or a list of blocks"
            if content is None
            else f"'{where}' must be text or a list of blocks",
            param=where,
            code="missing_field" if content is None else "invalid_type",
        )
    return [_block(block, f"{where}[{i}]") for i, block in enumerate(content)]


def _block(block: Any, where: str) -> Block:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"'{where}.type' is required", param=f"{where}.type")
    return Block(where, kind, block)


def _joined(blocks: list[Block]) -> str:
    """Texts, one a line."""
    return "\n".join(_only(block, "text").text("text") for block in blocks)


def _only(block: Block, *kinds: str) -> Block:
    if block.kind not in kinds:
        raise UnsupportedParameter(
            block.where,
            f"is a block of type {block.kind[:100]!r}: only {', '.join(kinds)} is supported here",
        )
    return block


def _user(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own."""
    said: list[Block] = []
    for block in blocks:
        if _only(block, "text", "image", "tool_result").kind != "tool_result":
            said.append(block)
            continue
        if said:
            yield {"role": "user", "content": _content(said)}
            said = []
        yield _tool_result(block)
    if said or not blocks:
        yield {"role": "user", "content": _content(said)}


def _content(blocks: list[Block]) -> str | list[dict[str, Any]]:
    """Text, or parts where there are images; each part knows `where` it stood."""
    if all(block.kind == "text" for block in blocks):
        return _joined(blocks)
    return [
        {"where": block.where, "type": "text", "text": block.text("text")}
        if block.kind == "text"
        else {"where": block.where, "type": "image_url", "image_url": {"url": _image_url(block)}}
        for block in blocks
    ]


def _image_url(block: Block) -> str:
    source = block.fields.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("base64", "url"):
        where = f"{block.where}.source.type"
        raise UnsupportedParameter(
            where, f"is {json.dumps(kind)[:100]}: only base64 and url are supported"
        )
    inner = Block(f"{block.where}.source", kind, source)
    if kind == "url":
        return inner.text("url")
    return f"data:{inner.text('media_type')};base64,{inner.text('data')}"


def _tool_result(block: Block) -> dict[str, Any]:
    given = block.fields.get("content")
    blocks = [] if given is None else _blocks(given, f"{block.where}.content")
    content = _content([_only(each, "text", "image") for each in blocks])
    if block.fields.get("is_error"):
        content = _as_error(content, block.where)
    return {"role": "tool", "tool_call_id": block.text("tool_use_id"), "content": content}


def _as_error(content: str | list[dict[str, Any]], where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return f"Error: {content}"
    return [{"where": where, "type": "text", "text": "Error:"}, *content]


def _assistant(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    by_kind: dict[str, list[Block]] = {"text": [], "thinking": [], "tool_use": []}
    for block in blocks:
        by_kind[_only(block, *by_kind).kind].append(block)
    message: dict[str, Any] = {"role": "assistant", "content": _joined(by_kind["text"])}
    if thoughts := [block.text("thinking") for block in by_kind["thinking"]]:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls := [_tool_call(block) for block in by_kind["tool_use"]]:
        message["tool_calls"] = calls
    yield message


def _tool_call(block: Block) -> dict[str, Any]:
    arguments = block.fields.get("input")
    if not isinstance(arguments, dict):
        where = f"{block.where}.input"
        raise InvalidRequest(
            f"'{where}' is {json.dumps(arguments)[:100]}, must be an object",
            param=where,
            code="missing_field" if arguments is None else "invalid_type",
        )
    function = {"name": block.text("name"), "arguments": json.dumps(arguments)}
    return {"id": block.text("id"), "type": "function", "function": function}


def _system(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    yield {"role": "system", "content": _joined(blocks)}


_MESSAGES_OF = {"user": _user, "assistant": _assistant, "system": _system}
