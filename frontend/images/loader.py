"""The images and videos of a request: fetched, checked, and made into what the model reads."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image, ImageOps, UnidentifiedImageError

from frontend.images.fetcher import FetchFailed, ImageFetcher
from frontend.images.fitting import (
    DECODE_ERRORS,
    BadImage,
    MeteredFile,
    check_scans,
    check_size,
    fit,
)
from frontend.images.source import ImageSource, Source, VideoSource
from frontend.images.video import (
    LIST_TYPE,
    Asked,
    BadVideo,
    FrameList,
    Moments,
    MovingImage,
    VideoFile,
    open_file,
    read_moments,
)
from frontend.limits.work_limits import ImageLimits, VideoLimits
from frontend.models.model_directory import ServedModel
from shared.errors import UnsupportedParameter
from shared.protocol.image_sizes import BadImageSize, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.video_card import VideoCard

SCHEME = "data:"
_LIST_HEAD = f"{SCHEME}{LIST_TYPE};base64"
_A = {"image": "an image", "video": "a video"}
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
LOW_DETAIL_TOKENS = 256

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
    check_scans(data)
    try:
        with Image.open(MeteredFile(data), formats=FORMATS) as image:
            check_size(image.size, max_pixels)
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P":  # straight to RGB, Pillow has a word on its transparency
                upright = upright.convert("RGBA")
            upright = upright.convert("RGB")
    except UnidentifiedImageError as exc:
        raise BadImage(f"is none of {', '.join(FORMATS)}, or damaged") from exc
    except DECODE_ERRORS as exc:
        raise BadImage(f"cannot be decoded: {exc}") from exc
    try:
        fitted = fit(upright, sight, max_features, max_pixels)
    except BadImageSize as exc:
        raise BadImage(str(exc)) from exc
    return LoadedImage.of(fitted.array.tobytes(), fitted.size)


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """What the model reads of an image, or of a moment of a video."""

    pixels: bytes  # [height, width, 3] uint8, of the size's `array_size`; or as `Moments` has them
    size: PixelSize
    digest: bytes
    num_frames: int = 0  # as in the `ImageSpan`
    goes_on: bool = False
    time: int = 0

    @classmethod
    def of(cls, pixels: bytes, size: PixelSize) -> LoadedImage:
        return cls(pixels, size, _digest(f"{size.height}x{size.width}:", pixels))


@dataclass(frozen=True, slots=True)
class LoadedVideo:
    """What the model reads of a video."""

    moments: tuple[LoadedImage, ...]
    stamps: tuple[str, ...]  # when each is, in words

    @classmethod
    def of(cls, read: Moments, card: VideoCard) -> LoadedVideo:
        height, width = read.size
        moments = []
        for idx, (pixels, time) in enumerate(zip(read.pixels, read.times, strict=True)):
            goes_on = bool(idx) and not card.has_stamps
            head = f"{card.moment_frames}x{height}x{width}{f'+{time}' if goes_on else ''}:"
            digest = _digest(head, pixels)
            moments.append(
                LoadedImage(pixels, read.size, digest, card.moment_frames, goes_on, time)
            )
        return cls(tuple(moments), tuple(f"<{each:.1f} seconds>" for each in read.seconds))


Loaded = LoadedImage | LoadedVideo


def _digest(head: str, pixels: bytes) -> bytes:
    digest = hashlib.sha256(head.encode())
    digest.update(pixels)
    return digest.digest()


class ImageLoader:
    """A few threads: the event loop decodes nothing."""

    def __init__(
        self,
        limits: ImageLimits,
        videos: VideoLimits,
        fetcher: ImageFetcher,
        num_threads: int = 2,
    ) -> None:
        self._limits = limits
        self._videos = videos
        self._fetcher = fetcher
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="image")

    async def close(self) -> None:
        await self._fetcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def load(
        self, sources: Sequence[Source], model: ServedModel, tenant: str
    ) -> list[Loaded]:
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
        return [outcome for outcome in outcomes if isinstance(outcome, Loaded)]

    def check(self, sources: Sequence[Source], model: ServedModel) -> None:
        """Whether the model takes so many images and videos. Raises InvalidRequest."""
        self._checked_sight(sources, model)

    def _checked_sight(self, sources: Sequence[Source], model: ServedModel) -> SightCard | None:
        """None for a model that takes no images, when there are none."""
        sight = model.card.sight
        images = [each for each in sources if isinstance(each, ImageSource)]
        videos = [each for each in sources if isinstance(each, VideoSource)]
        video = None if sight is None else sight.video
        for of_kind, name, is_taken, most in (
            (images, "image", sight is not None, self._limits.max_images),
            (videos, "video", video is not None, self._videos.max_videos),
        ):
            if of_kind and not is_taken:
                raise UnsupportedParameter(
                    of_kind[0].where,
                    f"is {_A[name]}, and the model '{model.name}' takes no {name}s",
                )
            if of_kind and model.limits.takes_no_images:
                raise UnsupportedParameter(
                    of_kind[0].where,
                    f"is {_A[name]}, and no worker of the model '{model.name}' takes {name}s now: "
                    "those on GPUs serve its text alone",
                )
            if len(of_kind) > most:
                raise of_kind[most].refused(
                    f"is {name} {most + 1} of {len(of_kind)}, a request may have {most}"
                )
        return sight

    async def _load(self, source: Source, sight: SightCard, tenant: str) -> Loaded:
        if isinstance(source, ImageSource):
            return await self._load_image(source, sight, tenant)
        assert sight.video is not None, "it has been checked"
        return await self._load_video(source, sight.video, tenant)

    async def _load_video(self, source: VideoSource, card: VideoCard, tenant: str) -> LoadedVideo:
        asked, limits = Asked(source.fps, source.num_frames), (self._videos, self._limits)

        def read(frames: FrameList | MovingImage | VideoFile) -> LoadedVideo:
            return LoadedVideo.of(read_moments(frames, asked, card, *limits), card)

        head, _, body = source.url.partition(",")
        try:
            if head.lower() == _LIST_HEAD:
                return await self._in_thread(lambda: read(FrameList(body, source.fps, *limits)))
            data = await self._bytes_of(source, tenant, self._videos.max_bytes)
            return await self._in_thread(lambda: read(open_file(data, self._limits)))
        except (BadDataUrl, FetchFailed) as exc:
            raise source.refused(f"is a video whose URL {exc}") from exc
        except BadVideo as exc:
            raise source.refused(f"is a video that {exc}") from exc

    async def _load_image(self, source: ImageSource, sight: SightCard, tenant: str) -> LoadedImage:
        limits = self._limits
        max_features = limits.max_tokens
        if source.detail == "low":
            max_features = min(max_features, LOW_DETAIL_TOKENS)
        try:
            data = await self._bytes_of(source, tenant, limits.max_bytes)
            return await self._in_thread(
                lambda: read_image(data, sight, limits.max_pixels, max_features)
            )
        except (BadDataUrl, FetchFailed) as exc:
            raise source.refused(f"is an image whose URL {exc}") from exc
        except BadImage as exc:
            raise source.refused(f"is an image that {exc}") from exc

    async def _bytes_of(self, source: Source, tenant: str, max_bytes: int) -> bytes:
        if source.url[: len(SCHEME)].lower() == SCHEME:
            return await self._in_thread(lambda: read_data_url(source.url, max_bytes))
        return await self._fetcher.fetch(source.url, max_bytes, tenant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
