"""Images in the sizes that models read, as their own image processors make them."""

from __future__ import annotations

import io
import re
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

from PIL import Image

from shared.protocol.image_sizes import FixedSize, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import AnyresSize, CanvasSize, SplitSize, TilesSize

# What Pillow raises on bytes that are no image, or are made to break it.
DECODE_ERRORS = (
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
MAX_CPU_S = 10.0  # of a thread that reads an image; one of 40 million pixels takes one
# A progressive JPEG is decoded once for each scan; encoders write ten.
_MAX_SCANS = 50
_MARK = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # in compressed data there is none
_MARK_WITHOUT_BODY, _END_OF_IMAGE, _START_OF_SCAN = 0x01, 0xD9, 0xDA


class MeteredFile(io.BytesIO):
    """An image as it came. Pillow's plugins read small pieces of it, and some get slower with each,
    as with comments: after a while there is no more, but an OSError.

    For one thread.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._until = time.thread_time() + MAX_CPU_S

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._until:
            raise OSError(f"it takes more than {MAX_CPU_S:g} s")
        return super().read(size)


class BadImage(Exception):
    """The bytes cannot be used; the message goes on behind "the image"."""


class Fitted(NamedTuple):
    """An image as a model reads it."""

    size: PixelSize
    array: Image.Image  # its pixels, of the size's `array_size`


def check_size(size: tuple[int, int], max_pixels: int) -> None:
    """Width and height. Raises BadImage."""
    width, height = size
    if width * height > max_pixels:
        raise BadImage(f"has {width} x {height} pixels, at most {max_pixels} in all")


def check_scans(data: bytes) -> None:
    """Checks a file in any format: few bytes of a JPEG could take hours. Raises BadImage."""
    num_scans, at = 0, 2
    while data[:2] == b"\xff\xd8" and (mark := _MARK.search(data, at)):
        code, at = mark[1][0], mark.end()
        if code == _END_OF_IMAGE:
            return
        if code != _MARK_WITHOUT_BODY:
            at += int.from_bytes(data[at : at + 2], "big")
        num_scans += code == _START_OF_SCAN
        if num_scans > _MAX_SCANS:
            raise BadImage(f"is a JPEG of more than {_MAX_SCANS} scans")


def fit(image: Image.Image, sight: SightCard, max_features: int, max_pixels: int) -> Fitted:
    """Slow: for a thread. Raises BadImage or BadImageSize."""
    kind, given = sight.size, PixelSize(image.height, image.width)
    resample = Image.Resampling(sight.resample)
    size = kind.fit(given, max_features)
    array_size = kind.array_size(size)
    check_size((array_size.width, array_size.height), max_pixels)
    match kind:
        case FixedSize(shortest_edge=int(edge)):
            return Fitted(size, _cut_out(image, size, edge, resample, max_pixels))
        case TilesSize():
            rows, cols = kind.tiling(given, max_features)
            canvas = _resized(image, PixelSize(rows * kind.tile, cols * kind.tile), resample)
            return Fitted(size, _tiles(canvas, image, kind.least, resample))
        case CanvasSize():
            canvas = Image.new("RGB", (size.width, size.height))
            canvas.paste(_resized(image, kind.scaled(given, size), resample))
            return Fitted(size, _tiles(canvas, image, kind.least, resample))
        case SplitSize():
            canvas = _resized(image, kind.scaled(given, max_features), resample)
            canvas = _resized(canvas, size, resample)
            return Fitted(size, _tiles(canvas, canvas, kind.least, resample))
        case AnyresSize():
            return Fitted(size, _anyres_tiles(_resized(image, size, resample), kind, resample))
    return Fitted(size, _resized(image, size, resample))


def _resized(image: Image.Image, size: PixelSize, resample: Image.Resampling) -> Image.Image:
    return image.resize((size.width, size.height), resample)


def _cut_out(
    image: Image.Image, size: PixelSize, edge: int, resample: Image.Resampling, max_pixels: int
) -> Image.Image:
    """The middle of it, scaled so that its shortest edge is as long as told. Raises BadImage."""
    short, long = sorted(image.size)
    scaled = edge, int(edge * long / short)
    check_size(scaled, max_pixels)  # a narrow one grows
    image = image.resize(scaled if image.width <= image.height else scaled[::-1], resample)
    left, top = (image.width - size.width) // 2, (image.height - size.height) // 2
    return image.crop((left, top, left + size.width, top + size.height))


def _tiles(
    canvas: Image.Image, whole: Image.Image, tile: PixelSize, resample: Image.Resampling
) -> Image.Image:
    """Row by row, and then the whole image, where there are several."""
    tiles = [*_cut(canvas, tile.width)]
    if len(tiles) > 1:
        tiles.append(_resized(whole, tile, resample))
    return _below_each_other(tiles, tile.width)


def _anyres_tiles(image: Image.Image, kind: AnyresSize, resample: Image.Resampling) -> Image.Image:
    """The whole image, and then its tiles, row by row."""
    size = PixelSize(image.height, image.width)
    resolution, scaled = kind.resolution(size), kind.scaled(size)
    canvas = Image.new("RGB", (resolution.width, resolution.height))
    place = (resolution.width - scaled.width) // 2, (resolution.height - scaled.height) // 2
    canvas.paste(_resized(image, scaled, resample), place)
    whole = _resized(image, kind.least, resample)
    return _below_each_other([whole, *_cut(canvas, kind.tile)], kind.tile)


def _cut(canvas: Image.Image, tile: int) -> Iterable[Image.Image]:
    """Row by row."""
    for top in range(0, canvas.height, tile):
        for left in range(0, canvas.width, tile):
            yield canvas.crop((left, top, left + tile, top + tile))


def _below_each_other(tiles: list[Image.Image], tile: int) -> Image.Image:
    array = Image.new("RGB", (tile, len(tiles) * tile))
    for idx, each in enumerate(tiles):
        array.paste(each, (0, idx * tile))
    return array
