"""Videos as models read them: frames are chosen, brought to one size, and put into moments."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image, UnidentifiedImageError

from frontend.images.fitting import (
    DECODE_ERRORS,
    BadImage,
    MeteredFile,
    check_scans,
    check_size,
)
from frontend.limits.work_limits import ImageLimits, VideoLimits
from shared.protocol.image_sizes import BadImageSize, PixelSize
from shared.protocol.video_card import VideoCard

LIST_TYPE = "video/jpeg"
LIST_FPS = 2.0
FORMATS = ("GIF", "WEBP")
_INSTALL = "pip install 'jetflock[audio]'"
_MAX_FILE_FRAMES = 20_000  # what is small may hold many
_MAX_FILE_PIXELS = 4_000_000_000  # of all frames of a film: seconds of a processor
_STILL_MS = 100.0  # a frame that does not say how long it stays
# What cameras, phones and browsers write. FFmpeg knows hundreds; a frame of some takes minutes.
_CODECS = ("av1", "h264", "hevc", "mpeg4", "vp8", "vp9")


class BadVideo(Exception):
    """The message goes on behind "is a video that"."""


class Frames(Protocol):
    """A video that has been opened."""

    @property
    def num_frames(self) -> int:
        """That it has."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether only some are read where nobody asks for a number."""
        ...

    def size(self, chosen: Sequence[int]) -> PixelSize:
        """The size of all of them. Raises BadVideo."""
        ...

    def images(self, chosen: Sequence[int]) -> Iterator[Image.Image]:
        """In RGB. Raises BadVideo."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client says of a video."""

    fps: float | None = None
    num_frames: int | None = None


@dataclass(frozen=True, slots=True)
class Moments:
    """What a model reads of a video."""

    size: PixelSize  # of each frame
    pixels: Sequence[bytes]  # of each moment, [num_frames * height, width, 3] uint8
    seconds: Sequence[float]  # the middle of each
    times: Sequence[int]  # of each, on the axis of positions


class FrameList:
    """JPEGs in base64, with commas between them, of which none is decoded before it is chosen."""

    chooses = False

    def __init__(self, body: str, fps: float | None, limits: VideoLimits, of_one: ImageLimits):
        """Raises BadVideo."""
        self.num_frames = body.count(",") + 1 if body.strip() else 0
        self.fps = fps or LIST_FPS
        self._limits = of_one
        _check_number(self.num_frames, limits)
        if len(body) > (limits.max_bytes + 2) // 3 * 4 + 4 * self.num_frames:
            raise BadVideo(f"holds more than {limits.max_bytes} bytes")
        self._parts = body.split(",")

    def size(self, chosen: Sequence[int]) -> PixelSize:
        """Looks at their heads alone. Raises BadVideo."""
        sizes = [self._opened(idx).size for idx in chosen]
        for idx, (width, height) in zip(chosen, sizes, strict=True):
            if (width, height) != sizes[0]:
                raise BadVideo(
                    f"has {width} x {height} pixels in frame {idx}, and {sizes[0][0]} x "
                    f"{sizes[0][1]} in frame {chosen[0]}"
                )
        width, height = sizes[0]
        return PixelSize(height, width)

    def images(self, chosen: Sequence[int]) -> Iterator[Image.Image]:
        """Raises BadVideo."""
        for idx in chosen:
            try:
                yield self._opened(idx).convert("RGB")
            except DECODE_ERRORS as exc:
                raise BadVideo(f"cannot be decoded in frame {idx}: {exc}") from exc

    def _opened(self, idx: int) -> Image.Image:
        try:
            data = base64.b64decode(self._parts[idx], validate=True)
        except (binascii.Error, ValueError) as exc:
            raise BadVideo(f"is not base64 in frame {idx}: {exc}") from exc
        if len(data) > self._limits.max_bytes:
            raise BadVideo(
                f"holds {len(data)} bytes in frame {idx}, at most {self._limits.max_bytes}"
            )
        try:
            check_scans(data)
            return Image.open(MeteredFile(data), formats=("JPEG",))
        except BadImage as exc:
            raise BadVideo(f"{exc} in frame {idx}") from exc
        except UnidentifiedImageError as exc:
            raise BadVideo(f"has no JPEG in frame {idx}, or a damaged one") from exc
        except DECODE_ERRORS as exc:
            raise BadVideo(f"cannot be decoded in frame {idx}: {exc}") from exc


class MovingImage:
    """A GIF or a WebP, whose frames have one size, and are decoded one behind the other."""

    chooses = True

    def __init__(self, data: bytes, limits: ImageLimits) -> None:
        """Raises BadVideo."""
        self._data = data
        durations: list[float] = []
        with self._opened() as image:
            self._size = PixelSize(image.height, image.width)
            for frame in _frames(image):
                _check_pixels(len(durations) + 1, self._size, limits)
                if len(durations) == _MAX_FILE_FRAMES:
                    raise BadVideo(f"has more than {_MAX_FILE_FRAMES} frames")
                durations.append(frame.info.get("duration") or _STILL_MS)
        self.num_frames = len(durations)
        self.fps = 1000 * len(durations) / sum(durations)

    def size(self, chosen: Sequence[int]) -> PixelSize:
        """The size of all frames."""
        return self._size

    def images(self, chosen: Sequence[int]) -> Iterator[Image.Image]:
        """Raises BadVideo."""
        wanted = set(chosen)
        with self._opened() as image:
            for idx, frame in enumerate(_frames(image)):
                if idx in wanted:
                    yield frame.convert("RGBA").convert("RGB")
                if idx == chosen[-1]:
                    return

    def _opened(self) -> Image.Image:
        try:
            return Image.open(MeteredFile(self._data), formats=FORMATS)
        except UnidentifiedImageError as exc:
            raise BadVideo(
                f"is neither a list of JPEGs ('data:{LIST_TYPE};base64,...') nor one of "
                f"{', '.join((*FORMATS, 'MP4', 'WebM'))}, or damaged"
            ) from exc
        except DECODE_ERRORS as exc:
            raise BadVideo(f"cannot be decoded: {exc}") from exc


class VideoFile:
    """What FFmpeg decodes, by PyAV: MP4, WebM and Matroska, one frame behind the other."""

    chooses = True

    def __init__(self, data: bytes, demuxer: str, limits: ImageLimits) -> None:
        """Raises BadVideo."""
        self._data = data
        self._demuxer = demuxer
        self._max_pixels = limits.max_pixels
        with self._opened() as container:
            stream = _film_of(container)
            self._size = PixelSize(stream.height, stream.width)
            rate = stream.average_rate
            self.num_frames = 0
            for packet in _av_errors(container.demux(stream)):
                self.num_frames += bool(packet.size)
                if self.num_frames > _MAX_FILE_FRAMES:
                    raise BadVideo(f"has more than {_MAX_FILE_FRAMES} frames")
        if not self.num_frames or not rate:
            raise BadVideo("has no frames, or does not say how many a second")
        _check_pixels(1, self._size, limits)
        if self.num_frames * self._size.height * self._size.width > _MAX_FILE_PIXELS:
            raise BadVideo(
                f"has {self.num_frames} frames of {self._size.width} x {self._size.height} pixels, "
                f"at most {_MAX_FILE_PIXELS} in all"
            )
        self.fps = float(rate)

    def size(self, chosen: Sequence[int]) -> PixelSize:
        """The size of all frames."""
        return self._size

    def images(self, chosen: Sequence[int]) -> Iterator[Image.Image]:
        """Raises BadVideo."""
        wanted, num_found = set(chosen), 0
        with self._opened() as container:
            stream = _film_of(container)
            # Frames may be larger than the file says.
            stream.codec_context.options = {"max_pixels": str(self._max_pixels)}
            for idx, frame in enumerate(_av_errors(container.decode(stream))):
                if (frame.height, frame.width) != self._size:
                    raise BadVideo(f"has {frame.width} x {frame.height} pixels in frame {idx}")
                if idx in wanted:
                    num_found += 1
                    yield frame.to_image()
                if idx == chosen[-1]:
                    break
        if num_found < len(wanted):
            raise BadVideo(f"has {num_found} of the {len(wanted)} frames that were chosen")

    def _opened(self) -> Any:
        try:
            import av
        except ImportError as exc:
            raise BadVideo(
                f"is in {self._demuxer}, and this server reads lists of JPEGs and "
                f"{', '.join(FORMATS)} alone: its operator may install PyAV ({_INSTALL})"
            ) from exc
        try:
            return av.open(
                io.BytesIO(self._data), format=self._demuxer, options={"max_streams": "8"}
            )
        except (av.FFmpegError, ValueError, MemoryError) as exc:
            raise BadVideo(f"cannot be decoded: {exc}") from exc


def open_file(data: bytes, limits: ImageLimits) -> MovingImage | VideoFile:
    """Opens it by its first bytes. Raises BadVideo."""
    if data[4:8] == b"ftyp":
        return VideoFile(data, "mp4", limits)
    if data[:4] == b"\x1aE\xdf\xa3":
        return VideoFile(data, "matroska", limits)
    return MovingImage(data, limits)


def _film_of(container: Any) -> Any:
    """Its stream; a cover, which is one of video, too, is none. Raises BadVideo."""
    codecs = []
    for stream in container.streams.video:
        # A stream whose codec FFmpeg lacks has no context.
        codecs.append(stream.codec.canonical_name if stream.codec_context else "unknown")
        if codecs[-1] in _CODECS:
            return stream
    if not codecs:
        raise BadVideo("is a file without a stream of video")
    raise BadVideo(f"is of the codec {codecs[0]!r}, must be of one of {', '.join(_CODECS)}")


def _av_errors(items: Iterator[Any]) -> Iterator[Any]:
    """Raises BadVideo."""
    import av

    try:
        yield from items
    except (av.FFmpegError, ValueError, MemoryError) as exc:
        raise BadVideo(f"cannot be decoded: {exc}") from exc


def read_moments(
    frames: Frames, asked: Asked, card: VideoCard, limits: VideoLimits, of_one: ImageLimits
) -> Moments:
    """As the model's own video processor makes them.

    Slow: for a thread. Raises BadVideo.
    """
    chosen = _chosen(frames, asked, card, limits)
    _check_number(len(chosen), limits)
    given = frames.size(chosen)
    _check_pixels(len(chosen), given, of_one)
    size = _fitted(card, given, len(chosen), limits.max_tokens)
    resample = Image.Resampling(card.resample)
    read = [
        image.resize((size.width, size.height), resample).tobytes()
        for image in frames.images(chosen)
    ]
    num_moments = card.num_moments(len(chosen))
    num_added = num_moments * card.moment_frames - len(chosen)
    read += read[-1:] * num_added
    at = [*chosen, *[chosen[-1]] * num_added]
    firsts = range(0, len(at), card.moment_frames)
    rate = len(chosen) / frames.num_frames * frames.fps
    return Moments(
        size,
        [b"".join(read[first : first + card.moment_frames]) for first in firsts],
        [(at[i] / frames.fps + at[i + card.moment_frames - 1] / frames.fps) / 2 for i in firsts],
        _times(card, num_moments, rate),
    )


def _times(card: VideoCard, num_moments: int, rate: float) -> list[int]:
    """In the float32 of transformers."""
    if card.has_stamps:
        return [0] * num_moments
    step = np.float32(1)
    if card.positions_per_s:
        step = np.float32(card.positions_per_s) * np.float32(card.moment_frames / rate)
    return [int(np.float32(idx) * step) for idx in range(num_moments)]


def _chosen(frames: Frames, asked: Asked, card: VideoCard, limits: VideoLimits) -> Sequence[int]:
    """Indices of those that are read."""
    total, num_asked = frames.num_frames, asked.num_frames
    if not frames.chooses and (num_asked is None or num_asked >= total):
        return range(total)
    most = min(card.max_frames, limits.max_frames, total)
    number = float(num_asked or 0)
    if not num_asked:
        number = min(max(total / frames.fps * (asked.fps or card.fps), card.min_frames), most)
    if card.has_stamps:
        return [round(each) for each in np.linspace(0, total - 1, min(int(number), total)).tolist()]
    pairs = round(number / card.moment_frames) if num_asked else number // card.moment_frames
    num_chosen = min(int(pairs), total // card.moment_frames) * card.moment_frames
    if not num_chosen:
        return range(total)
    step = total / num_chosen
    return [int(np.float32(idx * step)) for idx in range(math.ceil(total / step))]


def _fitted(card: VideoCard, size: PixelSize, num_frames: int, max_tokens: int) -> PixelSize:
    try:
        fitted = card.fit(size, num_frames, max_tokens)
    except BadImageSize as exc:
        raise BadVideo(str(exc)) from exc
    grid = card.grid(fitted)
    assert grid is not None, "it has been fitted"
    num_tokens = card.num_moments(num_frames) * grid.num_features
    if num_tokens > max_tokens:
        raise BadVideo(
            f"has {num_frames} frames, which are {num_tokens} tokens, at most {max_tokens} "
            "(--max-video-tokens): 'num_frames' chooses some"
        )
    return fitted


def _check_number(num_frames: int, limits: VideoLimits) -> None:
    if not num_frames:
        raise BadVideo("has 0 frames")
    if num_frames > limits.max_frames:
        raise BadVideo(f"has {num_frames} frames, at most {limits.max_frames} (--max-video-frames)")


def _check_pixels(num_frames: int, size: PixelSize, limits: ImageLimits) -> None:
    """All frames together have no more than the images of a request may have."""
    try:
        check_size((size.width, size.height), limits.max_pixels)
    except BadImage as exc:
        raise BadVideo(f"{exc} of a frame") from exc
    most = limits.max_pixels * limits.max_images
    if num_frames * size.height * size.width > most:
        raise BadVideo(
            f"has {num_frames} or more frames of {size.width} x {size.height} pixels, at most "
            f"{most} in all"
        )


def _frames(image: Image.Image) -> Iterator[Image.Image]:
    """Decoded. Raises BadVideo, where one is larger than the file has said."""
    size = image.size
    try:
        for idx in range(_MAX_FILE_FRAMES + 1):
            image.seek(idx)
            if image.size != size:
                raise BadVideo(f"has {image.width} x {image.height} pixels in frame {idx}")
            image.load()
            yield image
    except EOFError:
        return
    except DECODE_ERRORS as exc:
        raise BadVideo(f"cannot be decoded: {exc}") from exc
