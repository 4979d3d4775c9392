"""Audio in chats, as clients give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from shared.errors import InvalidRequest

AudioUrl = Annotated[str, msgspec.Meta(description="data: or https: URL of a file of audio")]
AudioFormat = Literal["wav", "mp3", "flac", "ogg", "opus", "m4a", "mp4", "webm"]


class AudioData(msgspec.Struct):
    """A file of audio, and what it is."""

    data: Annotated[str, msgspec.Meta(description="its bytes in base64")]
    format: AudioFormat


@dataclass(frozen=True, slots=True)
class AudioSource:
    """Audio by its bytes, or by its URL."""

    where: str  # the part of the body that holds it
    file: AudioData | None = None
    url: str = ""

    def refused(self, why: str) -> InvalidRequest:
        """The error of this audio."""
        return InvalidRequest(f"'{self.where}' {why}", param=self.where, code="invalid_audio")
