"""`messages` of Ollama as those of a chat: images become parts, calls and results get ids."""

from __future__ import annotations

import json
from typing import Any

from frontend.fields.request_body import check_num_messages
from shared.errors import InvalidRequest


def chat_messages(messages: Any) -> list[dict[str, Any]]:
    """Raises InvalidRequest."""
    if not isinstance(messages, list):
        raise InvalidRequest("'messages' must be a list", param="messages", code="invalid_type")
    check_num_messages(len(messages))
    calls = OpenCalls()
    return [_message(message, f"messages[{i}]", calls) for i, message in enumerate(messages)]


def user_message(text: str, images: Any) -> dict[str, Any]:
    """Of /api/generate. Raises InvalidRequest."""
    return {"role": "user", "content": _content(text, images, "images")}


def continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = messages[-1]
    return last["role"] == "assistant" and not last.get("tool_calls")


class OpenCalls:
    """The calls that no result has answered: Ollama's clients name their function at most."""

    def __init__(self) -> None:
        self._num_made = 0
        self._open: list[tuple[str, str]] = []  # id and name

    def made(self, call: Any) -> Any:
        """The call with an id; what is no call is left to others to refuse."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else f"call_{self._num_made}"
        self._num_made += 1
        self._open.append((call_id, str(function.get("name"))))
        return {**call, "id": call_id, "type": "function"}

    def answered(self, name: Any) -> str | None:
        """The id of the oldest call, of this function if it is named; None: there is none."""
        for i, (call_id, called) in enumerate(self._open):
            if name is None or called == name:
                del self._open[i]
                return call_id
        return None


def _message(message: Any, where: str, calls: OpenCalls) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"'{where}' must be an object", param=where, code="invalid_type")
    content, images = message.get("content"), message.get("images")
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(
            f"'{where}.content' is {json.dumps(content)[:100]}, must be text",
            param=f"{where}.content",
            code="invalid_type",
        )
    made: dict[str, Any] = {
        "role": message.get("role"),
        "content": _content(content or "", images, f"{where}.images"),
    }
    if message.get("thinking"):
        made["reasoning_content"] = message["thinking"]
    if tool_calls := message.get("tool_calls"):
        listed = isinstance(tool_calls, list)
        made["tool_calls"] = [calls.made(call) for call in tool_calls] if listed else tool_calls
    if made["role"] == "tool":
        name = message.get("tool_name") or message.get("name")
        call_id = message.get("tool_call_id") or calls.answered(name)
        made |= {"tool_call_id": call_id} if call_id else {}
        made |= {"name": name} if name else {}
    return made


def _content(text: str, images: Any, where: str) -> str | list[dict[str, Any]]:
    """Text, or parts where there are images; each part knows `where` it stood."""
    if images is None or images == []:
        return text
    if not isinstance(images, list):
        raise InvalidRequest(f"'{where}' must be a list", param=where, code="invalid_type")
    parts = [_image(image, f"{where}[{i}]") for i, image in enumerate(images)]
    return [*parts, {"type": "text", "text": text, "where": where}] if text else parts


def _image(image: Any, where: str) -> dict[str, Any]:
    """Ollama takes base64 alone: what kind of image it is, its bytes say."""
    if not isinstance(image, str):
        raise InvalidRequest(f"'{where}' must be base64", param=where, code="invalid_type")
    url = image if image.startswith("data:") else f"data:;base64,{image}"
    return {"type": "image_url", "image_url": {"url": url}, "where": where}
