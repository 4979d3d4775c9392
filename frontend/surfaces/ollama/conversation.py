"""`messages` of Ollama as those of a chat: images become parts, calls and results get ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from frontend.fields.request_body import some_messages
from frontend.images.source import ImageSource
from frontend.models.message_parts import Seen, joined
from frontend.surfaces.chat.messages import Conversation
from frontend.surfaces.tools.tool_messages import PastFunction, arguments_of

Base64Images = list[str]


class OllamaPastCall(msgspec.Struct):
    """A call of an earlier turn."""

    function: PastFunction
    id: str | None = None


class OllamaTurn(msgspec.Struct):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Base64Images | None = None
    tool_calls: list[OllamaPastCall] | None = None
    tool_name: str | None = None
    name: str | None = None  # its older name
    tool_call_id: str | None = None


def conversation_of(messages: Sequence[OllamaTurn] | None) -> Conversation:
    """Raises InvalidRequest."""
    calls = OpenCalls()
    conversation = Conversation([], [])
    for i, message in enumerate(some_messages(messages)):
        where = f"messages[{i}]"
        said: dict[str, Any] = {"role": message.role}
        say(conversation, said, message.content or "", message.images, f"{where}.images")
        if message.thinking:
            said["reasoning_content"] = message.thinking
        if message.tool_calls:
            said["tool_calls"] = [
                calls.made(call, f"{where}.tool_calls[{j}]")
                for j, call in enumerate(message.tool_calls)
            ]
        if message.role == "tool":
            name = message.tool_name or message.name
            call_id = message.tool_call_id or calls.answered(name)
            said |= {"tool_call_id": call_id} if call_id else {}
            said |= {"name": name} if name else {}
    return conversation


def say(
    conversation: Conversation,
    message: dict[str, Any],
    text: str,
    images: Base64Images | None,
    where: str,
) -> None:
    """Adds the message, with its images before its text.

    `where`: of the images. What kind of image each is, its bytes say.
    """
    for i, image in enumerate(images or ()):
        url = image if image.startswith("data:") else f"data:;base64,{image}"
        conversation.images.append(ImageSource(url, f"{where}[{i}]"))
    parts: list[str | Seen] = [Seen.IMAGE for _ in images or ()]
    message["content"] = joined([*parts, text] if text or not parts else parts)
    conversation.messages.append(message)


def continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = messages[-1]
    return last["role"] == "assistant" and not last.get("tool_calls")


class OpenCalls:
    """The calls that no result has answered: Ollama's clients name their function at most."""

    def __init__(self) -> None:
        self._num_made = 0
        self._open: list[tuple[str, str]] = []  # id and name

    def made(self, call: OllamaPastCall, where: str) -> dict[str, Any]:
        """As of a chat, with an id. Raises InvalidRequest."""
        call_id = call.id or f"call_{self._num_made}"
        self._num_made += 1
        self._open.append((call_id, call.function.name))
        arguments = arguments_of(call.function, where)
        function = {"name": call.function.name, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def answered(self, name: str | None) -> str | None:
        """The id of the oldest call, of this function if it is named; None: there is none."""
        for i, (call_id, called) in enumerate(self._open):
            if name is None or called == name:
                del self._open[i]
                return call_id
        return None
