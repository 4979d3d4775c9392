"""`messages` of a chat: what a client may say, and what of it chat templates are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec

from frontend.fields.request_body import convert, some_messages
from frontend.images.source import Detail, ImageSource, ImageUrl
from frontend.models.message_parts import joined
from frontend.surfaces.tools.tool_messages import PastCall, checked_call
from shared.errors import InvalidRequest, UnsupportedParameter


class ContentPart(msgspec.Struct, tag_field="type"):
    """A part of what a message says, told by its `type`."""


class TextPart(ContentPart, tag="text"):
    """A text."""

    text: str


class RefusalPart(ContentPart, tag="refusal"):
    """What an assistant said in place of an answer."""

    refusal: str


class ImageLink(msgspec.Struct):
    """An image, and how closely it is looked at."""

    url: ImageUrl
    detail: Detail | None = None


class ImagePart(ContentPart, tag="image_url"):
    """An image."""

    image_url: ImageLink | ImageUrl
    detail: Detail | None = None

    def source(self, where: str) -> ImageSource:
        """As the part of the body at `where` names it."""
        link = self.image_url
        if isinstance(link, str):
            link = ImageLink(link, self.detail)
        return ImageSource(link.url, where, link.detail or "auto")


class GivenMessage(msgspec.Struct):
    """A message; chat templates also get the fields that are not here."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | RefusalPart | ImagePart | str] | None = None
    refusal: str | None = None  # in place of the content of an assistant
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    audio: Any = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as chat templates take them, content being text, and the images in them."""

    messages: list[dict[str, Any]]
    images: list[ImageSource]

    @classmethod
    def of(cls, messages: list[dict[str, Any]] | None, where: str = "messages") -> Self:
        """Raises InvalidRequest."""
        given = some_messages(messages, where)
        images: list[ImageSource] = []
        typed = convert(given, list[GivenMessage], where)
        checked = [
            _checked(raw, message, f"{where}[{i}]", images)
            for i, (raw, message) in enumerate(zip(given, typed, strict=True))
        ]
        return cls(checked, images)

    @property
    def last_words(self) -> str:
        """What `echo` repeats: the last message, where it is the assistant's."""
        return self.messages[-1]["content"] if self.messages[-1]["role"] == "assistant" else ""


def _checked(
    given: dict[str, Any], message: GivenMessage, where: str, images: list[ImageSource]
) -> dict[str, Any]:
    checked = {key: value for key, value in given.items() if value is not None}
    if "reasoning" in checked:  # templates know it by its other name
        checked.setdefault("reasoning_content", checked["reasoning"])
    if message.audio is not None:
        raise UnsupportedParameter(f"{where}.audio")
    if message.content is not None:
        checked["content"] = _text_of(message.content, f"{where}.content", images)
    elif message.role == "assistant":  # OpenAI's service keeps a refusal in the conversation
        checked["content"] = message.refusal or ""
    else:
        raise InvalidRequest(f"'{where}.content' is required", param=f"{where}.content")
    if message.tool_calls is not None:
        checked["tool_calls"] = [
            checked_call(call, typed, f"{where}.tool_calls[{i}]")
            for i, (call, typed) in enumerate(
                zip(given["tool_calls"], message.tool_calls, strict=True)
            )
        ]
    return checked


def _text_of(
    content: str | list[TextPart | RefusalPart | ImagePart | str],
    where: str,
    images: list[ImageSource],
) -> str:
    """The texts, one a line, where there are no images."""
    if isinstance(content, str):
        return content
    texts: list[str | None] = []
    for i, part in enumerate(content):
        match part:
            case str():
                texts.append(part)
            case TextPart():
                texts.append(part.text)
            case RefusalPart():
                texts.append(part.refusal)
            case ImagePart():
                images.append(part.source(f"{where}[{i}]"))
                texts.append(None)
    return joined(texts)
