"""`messages` of a chat: what a client may say, and what of it chat templates are told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import msgspec

from frontend.audio.audio_source import AudioData, AudioSource, AudioUrl
from frontend.fields.request_body import convert, some_messages
from frontend.images.source import (
    Detail,
    Fps,
    ImageSource,
    ImageUrl,
    NumFrames,
    Source,
    VideoSource,
    VideoUrl,
)
from frontend.models.message_parts import Seen, joined
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


class VideoFields(msgspec.Struct, forbid_unknown_fields=True):
    """What is read of all videos of a request, where they do not say it themselves."""

    fps: Fps | None = None
    num_frames: NumFrames | None = None


class MediaFields(msgspec.Struct, forbid_unknown_fields=True):
    """The same, as vLLM's readers of media have it."""

    video: VideoFields | None = None


class VideoLink(msgspec.Struct):
    """A video. `fps` is the rate of its frames, where it is a list of them (default: 2), else how
    many are chosen a second (default: the model's); `num_frames` are chosen at equal distances.
    """

    url: VideoUrl
    fps: Fps | None = None
    num_frames: NumFrames | None = None


class VideoPart(ContentPart, tag="video_url"):
    """A video."""

    video_url: VideoLink | VideoUrl
    fps: Fps | None = None
    num_frames: NumFrames | None = None

    def source(self, where: str) -> VideoSource:
        """As the part of the body at `where` names it."""
        link = self.video_url
        if isinstance(link, str):
            link = VideoLink(link)
        return VideoSource(
            link.url, where, link.fps or self.fps, link.num_frames or self.num_frames
        )


class AudioPart(ContentPart, tag="input_audio"):
    """Audio."""

    input_audio: AudioData


class AudioLink(msgspec.Struct):
    """Audio elsewhere."""

    url: AudioUrl


class AudioLinkPart(ContentPart, tag="audio_url"):
    """Audio by its URL, as vLLM has it."""

    audio_url: AudioLink | AudioUrl


Part = TextPart | RefusalPart | ImagePart | VideoPart | AudioPart | AudioLinkPart | str


class GivenMessage(msgspec.Struct):
    """A message; chat templates also get the fields that are not here."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    refusal: str | None = None  # in place of the content of an assistant
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    audio: Any = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as chat templates take them, content being text, and the images, videos and audio in
    them.
    """

    messages: list[dict[str, Any]]
    images: list[Source]

    @classmethod
    def of(cls, messages: list[dict[str, Any]] | None, where: str = "messages") -> Self:
        """Raises InvalidRequest."""
        given = some_messages(messages, where)
        images: list[Source] = []
        typed = convert(given, list[GivenMessage], where)
        checked = [
            _checked(raw, message, f"{where}[{i}]", images)
            for i, (raw, message) in enumerate(zip(given, typed, strict=True))
        ]
        return cls(checked, images)

    def with_videos(self, fields: VideoFields) -> Self:
        """Its videos read like this, where they do not say it themselves."""
        images = [
            replace(
                each,
                fps=each.fps or fields.fps,
                num_frames=each.num_frames or fields.num_frames,
            )
            if isinstance(each, VideoSource)
            else each
            for each in self.images
        ]
        return replace(self, images=images)

    @property
    def last_words(self) -> str:
        """What `echo` repeats: the last message, where it is the assistant's."""
        return self.messages[-1]["content"] if self.messages[-1]["role"] == "assistant" else ""


def _checked(
    given: dict[str, Any], message: GivenMessage, where: str, images: list[Source]
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
    content: str | list[Part],
    where: str,
    images: list[Source],
) -> str:
    """The texts, one a line, where there is nothing else."""
    if isinstance(content, str):
        return content
    texts: list[str | Seen] = []
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
                texts.append(Seen.IMAGE)
            case VideoPart():
                images.append(part.source(f"{where}[{i}]"))
                texts.append(Seen.VIDEO)
            case AudioPart():
                images.append(AudioSource(f"{where}[{i}]", part.input_audio))
                texts.append(Seen.AUDIO)
            case AudioLinkPart():
                link = part.audio_url
                url = link if isinstance(link, str) else link.url
                images.append(AudioSource(f"{where}[{i}]", url=url))
                texts.append(Seen.AUDIO)
    return joined(texts)
