"""From the bytes of an image to the pixels that a model reads."""

from __future__ import annotations

import io
import struct

from PIL import Image, ImageOps, UnidentifiedImageError

from shared.protocol.model_cards import VisionCard

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

# What Pillow raises on bytes that are no image, or are made to break it.
_DECODE_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    EOFError,
    MemoryError,
    struct.error,
    Image.DecompressionBombError,
    UserWarning,  # where warnings are errors
    Image.DecompressionBombWarning,
)


class BadImage(Exception):
    """The bytes cannot be used; the message goes on behind "the image"."""


def read_pixels(data: bytes, vision: VisionCard, max_pixels: int) -> bytes:
    """[height, width, 3] uint8, as the model's own image processor makes them.

    Slow: for a thread. Raises BadImage.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, max_pixels)
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P":  # straight to RGB, Pillow has a word on its transparency
                upright = upright.convert("RGBA")
            upright = upright.convert("RGB")
    except UnidentifiedImageError as exc:
        raise BadImage(f"is none of {', '.join(FORMATS)}, or damaged") from exc
    except _DECODE_ERRORS as exc:
        raise BadImage(f"cannot be decoded: {exc}") from exc
    return _fitted(upright, vision, max_pixels).tobytes()


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise BadImage(f"has {width} x {height} pixels, at most {max_pixels} in all")


def _fitted(image: Image.Image, vision: VisionCard, max_pixels: int) -> Image.Image:
    if vision.shortest_edge is None:
        return image.resize((vision.width, vision.height), Image.Resampling(vision.resample))
    short, long = sorted(image.size)
    scaled = vision.shortest_edge, int(vision.shortest_edge * long / short)
    _check_size(scaled, max_pixels)  # a narrow one grows
    size = scaled if image.width <= image.height else scaled[::-1]
    image = image.resize(size, Image.Resampling(vision.resample))
    left, top = (image.width - vision.width) // 2, (image.height - vision.height) // 2
    return image.crop((left, top, left + vision.width, top + vision.height))
