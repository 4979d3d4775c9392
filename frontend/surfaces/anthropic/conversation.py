"""`system` and `messages`: blocks become messages as chat templates take them, and images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from frontend.fields.request_body import some_messages
from frontend.images.source import ImageSource, ImageUrl, Source
from frontend.models.message_parts import Seen, joined
from frontend.surfaces.chat.messages import Conversation, TextPart
from shared.errors import InvalidRequest


class Base64Source(msgspec.Struct, tag_field="type", tag="base64"):
    """The bytes of an image."""

    media_type: str
    data: str

    @property
    def link(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(msgspec.Struct, tag_field="type", tag="url"):
    """Where an image is."""

    url: ImageUrl

    @property
    def link(self) -> str:
        return self.url


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource


class PastThinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """What was thought before an earlier answer."""

    thinking: str


class PastToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """What a call returned."""

    tool_use_id: str
    content: str | list[TextPart | ImageBlock] | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    """What the user says, and what calls returned."""

    content: str | list[TextPart | ImageBlock | ToolResultBlock]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    """An earlier answer, or the beginning of this one."""

    content: str | list[TextPart | PastThinking | PastToolUse]


class SystemTurn(msgspec.Struct, tag_field="role", tag="system"):
    """What is said for the operator."""

    content: str | list[TextPart]


Turn = UserTurn | AssistantTurn | SystemTurn
_Block = TextPart | ImageBlock | ToolResultBlock | PastThinking | PastToolUse
_Placed = tuple[str, _Block]  # where it stands in the body


def conversation_of(
    system: str | Sequence[TextPart] | None, turns: Sequence[Turn] | None
) -> Conversation:
    """Raises InvalidRequest."""
    reader = _Reader()
    if system:
        reader.say("system", _placed(system, "system"))
    for role, blocks in _merged(some_messages(turns)):
        reader.read(role, blocks)
    return Conversation(reader.messages, reader.images)


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


def _merged(turns: Sequence[Turn]) -> Iterator[tuple[str, list[_Placed]]]:
    """Neighbours of one role are one turn."""
    role, blocks = "", list[_Placed]()
    for i, turn in enumerate(turns):
        turn_role = str(turn.__struct_config__.tag)
        if i and turn_role != role:
            yield role, blocks
            blocks = []
        role = turn_role
        blocks += _placed(turn.content, f"messages[{i}].content")
    yield role, blocks


def _placed(content: str | Sequence[_Block], where: str) -> list[_Placed]:
    if isinstance(content, str):
        return [(where, TextPart(content))]
    return [(f"{where}[{i}]", block) for i, block in enumerate(content)]


class _Reader:
    """Puts turns into messages, and their images beside them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.images: list[Source] = []

    def read(self, role: str, blocks: list[_Placed]) -> None:
        """Results of tools are messages of their own."""
        if role == "assistant":
            self.messages.append(_answer(blocks))
            return
        said: list[_Placed] = []
        for where, block in blocks:
            if not isinstance(block, ToolResultBlock):
                said.append((where, block))
                continue
            if said:
                self.say(role, said)
                said = []
            self._result(where, block)
        if said or not blocks:
            self.say(role, said)

    def say(self, role: str, blocks: list[_Placed], **fields: str) -> None:
        """Texts and images."""
        texts: list[str | Seen] = []
        for where, block in blocks:
            if isinstance(block, ImageBlock):
                self.images.append(ImageSource(block.source.link, where))
                texts.append(Seen.IMAGE)
            elif isinstance(block, TextPart):
                texts.append(block.text)
        self.messages.append({"role": role, **fields, "content": joined(texts)})

    def _result(self, where: str, block: ToolResultBlock) -> None:
        blocks = _placed(block.content or [], f"{where}.content")
        if block.is_error:
            first = blocks.pop(0)[1] if blocks and isinstance(blocks[0][1], TextPart) else None
            text = f"Error: {first.text}" if isinstance(first, TextPart) else "Error:"
            blocks.insert(0, (where, TextPart(text)))
        self.say("tool", blocks, tool_call_id=block.tool_use_id)


def _answer(blocks: list[_Placed]) -> dict[str, Any]:
    """Its thoughts and its calls are fields of their own."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for _, block in blocks:
        match block:
            case TextPart():
                texts.append(block.text)
            case PastThinking():
                thoughts.append(block.thinking)
            case PastToolUse():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message
