"""What an image may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Of one request's images."""

    max_images: int
    max_bytes: int  # of each, as it comes
    max_pixels: int  # of each, decoded
