"""Images as clients name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from shared.errors import InvalidRequest

Detail = Literal["auto", "low", "high", "original"]
ImageUrl = Annotated[
    str, msgspec.Meta(description="data: or https: URL of a PNG, JPEG, WebP or GIF")
]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image as a client names it."""

    url: str
    where: str  # the part of the body that holds it
    detail: Detail = "auto"

    def refused(self, why: str) -> InvalidRequest:
        """The error of this image."""
        return InvalidRequest(f"'{self.where}' {why}", param=self.where, code="invalid_image")
