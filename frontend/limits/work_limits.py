"""What an operator lets batches, images, videos and audio cost, and which images are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KeptRequests = Literal["none", "asked", "all"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a frontend allows the batches that it drives."""

    max_lines: int
    max_line_bytes: int
    max_in_flight: int
    deadline_s: float  # of one line, waiting and running


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What the images of one request may cost."""

    max_images: int
    max_bytes: int  # of each, as it comes
    max_pixels: int  # of each, decoded
    max_tokens: int  # of each, where the model lets its size choose


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """What the videos of one request may cost; each frame of a list is an image."""

    max_videos: int
    max_bytes: int  # of each, as it comes
    max_frames: int  # of each, that are read
    max_tokens: int  # of each


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """What the audio of one request may cost."""

    max_bytes: int  # of each file, as it comes
    max_s: float  # of all, decoded
    max_audios: int  # of a chat


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Which images and videos by URL a frontend fetches."""

    is_on: bool
    allow_http: bool
    allowed_domains: tuple[str, ...]  # they and those below them; empty: all
    timeout_s: float  # for one of them, with redirects
