"""Images, videos and audio as clients name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from frontend.audio.audio_source import AudioSource
from shared.errors import InvalidRequest

MIN_FPS, MAX_FPS = 0.01, 1000.0
MAX_FRAMES = 100_000

Detail = Literal["auto", "low", "high", "original"]
ImageUrl = Annotated[
    str, msgspec.Meta(description="data: or https: URL of a PNG, JPEG, WebP or GIF")
]
VideoUrl = Annotated[
    str,
    msgspec.Meta(
        description="'data:video/jpeg;base64,' and JPEGs in base64 with commas between them; or "
        "data: or https: URL of a GIF, WebP, MP4 or WebM"
    ),
]
Fps = Annotated[float, msgspec.Meta(ge=MIN_FPS, le=MAX_FPS)]
NumFrames = Annotated[int, msgspec.Meta(ge=1, le=MAX_FRAMES)]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image as a client names it."""

    url: str
    where: str  # the part of the body that holds it
    detail: Detail = "auto"

    def refused(self, why: str) -> InvalidRequest:
        """The error of this image."""
        return InvalidRequest(f"'{self.where}' {why}", param=self.where, code="invalid_image")


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A video as a client names it."""

    url: str
    where: str  # the part of the body that holds it
    fps: float | None = None  # of the frames of a list; of a file those that are chosen
    num_frames: int | None = None  # that are chosen

    def refused(self, why: str) -> InvalidRequest:
        """The error of this video."""
        return InvalidRequest(f"'{self.where}' {why}", param=self.where, code="invalid_video")


Source = ImageSource | VideoSource | AudioSource
