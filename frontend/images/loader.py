"""The images of a request: fetched, checked, and made into what the model reads."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import struct
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image, ImageOps, UnidentifiedImageError

from frontend.images.fetcher import FetchFailed, ImageFetcher
from frontend.images.fitting import BadImage, check_size, fit
from frontend.images.source import ImageSource
from frontend.limits.work_limits import ImageLimits
from frontend.models.model_directory import ServedModel
from shared.errors import UnsupportedParameter
from shared.protocol.image_sizes import BadImageSize, PixelSize
from shared.protocol.sight_card import SightCard

SCHEME = "data:"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
LOW_DETAIL_TOKENS = 256

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

T = TypeVar("T")


class BadDataUrl(Exception):
    """The message goes on behind "the URL"."""


def read_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes in it, whatever type it names. Slow: for a thread. Raises BadDataUrl."""
    head, comma, body = url[len(SCHEME) :].partition(",")
    if not comma:
        raise BadDataUrl("has no comma before its data")
    is_base64 = head.rpartition(";")[2].strip().lower() == "base64"
    if len(body) > (max_bytes + 2) // 3 * 4 + 64 if is_base64 else len(body) > 3 * max_bytes:
        raise BadDataUrl(f"holds more than {max_bytes} bytes")
    if not is_base64:
        data = urllib.parse.unquote_to_bytes(body)
    else:
        try:
            data = base64.b64decode(urllib.parse.unquote(body), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise BadDataUrl(f"is not base64: {exc}") from exc
    if len(data) > max_bytes:
        raise BadDataUrl(f"holds {len(data)} bytes, at most {max_bytes}")
    return data


def read_image(data: bytes, sight: SightCard, max_pixels: int, max_features: int) -> LoadedImage:
    """As the model's own image processor makes it.

    Slow: for a thread. Raises BadImage.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_size(image.size, max_pixels)
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P":  # straight to RGB, Pillow has a word on its transparency
                upright = upright.convert("RGBA")
            upright = upright.convert("RGB")
    except UnidentifiedImageError as exc:
        raise BadImage(f"is none of {', '.join(FORMATS)}, or damaged") from exc
    except _DECODE_ERRORS as exc:
        raise BadImage(f"cannot be decoded: {exc}") from exc
    try:
        fitted = fit(upright, sight, max_features, max_pixels)
    except BadImageSize as exc:
        raise BadImage(str(exc)) from exc
    return LoadedImage.of(fitted.array.tobytes(), fitted.size)


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """What the model reads of an image."""

    pixels: bytes  # [height, width, 3] uint8, of the size's `array_size`
    size: PixelSize
    digest: bytes

    @classmethod
    def of(cls, pixels: bytes, size: PixelSize) -> LoadedImage:
        digest = hashlib.sha256(f"{size.height}x{size.width}:".encode())
        digest.update(pixels)
        return cls(pixels, size, digest.digest())


class ImageLoader:
    """A few threads: the event loop decodes nothing."""

    def __init__(self, limits: ImageLimits, fetcher: ImageFetcher, num_threads: int = 2) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="image")

    async def close(self) -> None:
        await self._fetcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def load(
        self, sources: Sequence[ImageSource], model: ServedModel, tenant: str
    ) -> list[LoadedImage]:
        """Loads them in their order, for a tenant.

        Raises InvalidRequest, which names the first wrong one.
        """
        sight = self._checked_sight(sources, model)
        if sight is None or not sources:
            return []
        outcomes = await asyncio.gather(
            *(self._load(source, sight, tenant) for source in sources), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, LoadedImage)]

    def check(self, sources: Sequence[ImageSource], model: ServedModel) -> None:
        """Whether the model takes so many images. Raises InvalidRequest."""
        self._checked_sight(sources, model)

    def _checked_sight(
        self, sources: Sequence[ImageSource], model: ServedModel
    ) -> SightCard | None:
        """None for a model that takes no images, when there are none."""
        sight = model.card.sight
        if sight is None and sources:
            raise UnsupportedParameter(
                sources[0].where, f"is an image, and the model '{model.name}' takes no images"
            )
        if sources and model.limits.takes_no_images:
            raise UnsupportedParameter(
                sources[0].where,
                f"is an image, and no worker of the model '{model.name}' takes images now: those "
                "on GPUs serve its text alone",
            )
        if len(sources) > self._limits.max_images:
            raise sources[self._limits.max_images].refused(
                f"is image {self._limits.max_images + 1} of {len(sources)}, a request may have "
                f"{self._limits.max_images}"
            )
        return sight

    async def _load(self, source: ImageSource, sight: SightCard, tenant: str) -> LoadedImage:
        limits = self._limits
        max_features = limits.max_tokens
        if source.detail == "low":
            max_features = min(max_features, LOW_DETAIL_TOKENS)
        try:
            data = await self._bytes_of(source, tenant)
            return await self._in_thread(
                lambda: read_image(data, sight, limits.max_pixels, max_features)
            )
        except (BadDataUrl, FetchFailed) as exc:
            raise source.refused(f"is an image whose URL {exc}") from exc
        except BadImage as exc:
            raise source.refused(f"is an image that {exc}") from exc

    async def _bytes_of(self, source: ImageSource, tenant: str) -> bytes:
        if source.url[: len(SCHEME)].lower() == SCHEME:
            return await self._in_thread(lambda: read_data_url(source.url, self._limits.max_bytes))
        return await self._fetcher.fetch(source.url, tenant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
