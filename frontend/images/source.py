"""Parts of messages that name an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.errors import InvalidRequest

DETAILS = ("auto", "low", "high", "original")
_MAX_SHOWN = 80  # characters of a value, in an error


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image as a client names it."""

    url: str
    where: str  # the part of the body that holds it
    detail: str = "auto"  # one of DETAILS

    def refused(self, why: str) -> InvalidRequest:
        """The error of this image."""
        return InvalidRequest(f"'{self.where}' {why}", param=self.where, code="invalid_image")


def image_source(part: dict[str, Any], where: str) -> ImageSource:
    """The image of a part of type `image_url`, or `input_image`. Raises InvalidRequest."""
    image = part.get("image_url")
    if part.get("type") == "input_image" or not isinstance(image, dict):
        image = {"url": image, "detail": part.get("detail")}
    url, detail = image.get("url"), image.get("detail")
    if detail is None:
        detail = "auto"
    source = ImageSource(url if isinstance(url, str) else "", where, str(detail))
    if part.get("file_id") is not None:
        raise source.refused("names a file: only URLs are supported")
    if not isinstance(url, str):
        raise source.refused(f"needs a URL, not {str(url)[:_MAX_SHOWN]!r}")
    if detail not in DETAILS:
        raise source.refused(
            f"has the detail {str(detail)[:_MAX_SHOWN]!r}, must be one of {', '.join(DETAILS)}"
        )
    return source
