"""The images, videos and audio of a request: fetched, checked, and made into what a model reads."""

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

from frontend.audio.audio_source import AudioSource
from frontend.audio.loader import AudioLoader, Spectrogram
from frontend.audio.spectrogram import HOP
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
from shared.protocol.hearing_card import WINDOW_FRAMES
from shared.protocol.image_sizes import BadImageSize, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.video_card import VideoCard

SCHEME = "data:"
_LIST_HEAD = f"{SCHEME}{LIST_TYPE};base64"
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
    """What the model reads of an image, a moment of a video, or a window of audio."""

    # [height, width, 3] uint8, of the size's `array_size`; or as `Moments` has them; or frames of a
    # spectrogram, [num_sound_frames and some of silence, num_mel_bins] float32
    pixels: bytes
    size: PixelSize
    digest: bytes
    num_frames: int = 0  # as in the `ImageSpan`
    goes_on: bool = False
    time: int = 0
    num_sound_frames: int = 0

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


@dataclass(frozen=True, slots=True)
class LoadedAudio:
    """What the model hears of a file."""

    windows: tuple[LoadedImage, ...]

    @classmethod
    def of(cls, heard: Spectrogram) -> LoadedAudio:
        """Behind the last window is some silence: workers give it as much as it lacks."""
        windows = []
        num_frames = -(-heard.num_samples // HOP)
        for start in range(0, num_frames, WINDOW_FRAMES):
            frames = heard.frames[start : start + WINDOW_FRAMES].tobytes()
            num_heard = min(num_frames - start, WINDOW_FRAMES)
            digest = _digest(f"{num_heard} frames:", frames)
            nothing = PixelSize(0, 0)
            windows.append(LoadedImage(frames, nothing, digest, num_sound_frames=num_heard))
        return cls(tuple(windows))


Loaded = LoadedImage | LoadedVideo | LoadedAudio


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
        audio: AudioLoader,
        fetcher: ImageFetcher,
        num_threads: int = 2,
    ) -> None:
        self._limits = limits
        self._videos = videos
        self._audio = audio
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
        if not sources:
            return []
        self.check(sources, model)
        sounds = [source for source in sources if isinstance(source, AudioSource)]
        heard = [
            LoadedAudio.of(each)
            async for each in self._audio.spectrograms(
                sounds, model.card.sound, lambda each, most: self._audio_bytes(each, tenant, most)
            )
        ]
        outcomes = await asyncio.gather(
            *(
                self._load(source, model.card.sight, tenant)
                for source in sources
                if not isinstance(source, AudioSource)
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        seen = iter(outcome for outcome in outcomes if isinstance(outcome, Loaded))
        return [
            heard.pop(0) if isinstance(source, AudioSource) else next(seen) for source in sources
        ]

    def check(self, sources: Sequence[Source], model: ServedModel) -> None:
        """Whether the model takes so many images, videos and audio. Raises InvalidRequest."""
        sight, sound = model.card.sight, model.card.sound
        video = None if sight is None else sight.video
        for kind, a, name, some, card, most in (
            (ImageSource, "an ", "image", "images", sight, self._limits.max_images),
            (VideoSource, "a ", "video", "videos", video, self._videos.max_videos),
            (AudioSource, "", "audio", "audio", sound, self._audio.max_audios),
        ):
            of_kind = [each for each in sources if isinstance(each, kind)]
            if of_kind and card is None:
                raise UnsupportedParameter(
                    of_kind[0].where,
                    f"is {a}{name}, and the model '{model.name}' takes no {some}",
                )
            if of_kind and model.limits.takes_no_images:
                raise UnsupportedParameter(
                    of_kind[0].where,
                    f"is {a}{name}, and no worker of the model '{model.name}' takes {some} now: "
                    "those on GPUs serve its text alone",
                )
            if len(of_kind) > most:
                raise of_kind[most].refused(
                    f"is {name} {most + 1} of {len(of_kind)}, a request may have {most}"
                )

    async def _load(self, source: Source, sight: SightCard | None, tenant: str) -> Loaded:
        assert sight is not None, "it has been checked"
        if isinstance(source, ImageSource):
            return await self._load_image(source, sight, tenant)
        assert isinstance(source, VideoSource), "no other kind is seen"
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

    async def _audio_bytes(self, source: AudioSource, tenant: str, max_bytes: int) -> bytes:
        try:
            return await self._bytes_of(source, tenant, max_bytes)
        except (BadDataUrl, FetchFailed) as exc:
            raise source.refused(f"is audio whose URL {exc}") from exc

    async def _bytes_of(self, source: Source, tenant: str, max_bytes: int) -> bytes:
        if source.url[: len(SCHEME)].lower() == SCHEME:
            return await self._in_thread(lambda: read_data_url(source.url, max_bytes))
        return await self._fetcher.fetch(source.url, max_bytes, tenant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
