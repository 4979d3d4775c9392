"""Files of audio: WAV, read here, and what FFmpeg decodes, by PyAV: MP3, FLAC, Ogg, MP4, WebM."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.protocol.hearing_card import SAMPLE_RATE

FORMATS = ("WAV", "FLAC", "MP3", "MP4", "OGG", "WebM")
INSTALL = "pip install 'jetflock[audio]'"
MAX_CHANNELS = 64
MAX_RATE = 768_000
MIN_RATE = 1000
_MAX_CHUNKS = 1024  # of a file of nothing else there would be millions
_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMAT = struct.Struct("<HHIIHH")
_SUB_FORMAT = slice(24, 26)  # of an extensible one
_DTYPES = {
    (_INTEGERS, 8): "u1",
    (_INTEGERS, 16): "<i2",
    (_INTEGERS, 24): "u1",
    (_INTEGERS, 32): "<i4",
    (_FLOATS, 32): "<f4",
    (_FLOATS, 64): "<f8",
}


# What a demuxer is for, by the formats that clients name.
_DEMUXERS = {
    "wav": "wav",
    "mp3": "mp3",
    "flac": "flac",
    "ogg": "ogg",
    "opus": "ogg",
    "m4a": "mp4",
    "mp4": "mp4",
    "webm": "matroska",
}


class BadAudio(Exception):
    """It cannot be used; the message goes on behind "is audio that"."""


class Samples(NamedTuple):
    """One channel: the mean of all."""

    values: npt.NDArray[np.float32]  # [num_samples], most of them within [-1, 1]
    rate: int  # a second


def read_audio(data: bytes, max_s: float) -> Samples:
    """Raises BadAudio."""
    if is_wav(data):
        return read_wav(data, max_s)
    demuxer = demuxer_of(data)
    if demuxer is None:
        raise BadAudio(f"is none of {', '.join(FORMATS)}")
    return read_container(data, demuxer, max_s)


def check_format(data: bytes, format_name: str) -> None:
    """Raises BadAudio for a file that is not of the format."""
    found = "wav" if is_wav(data) else demuxer_of(data)
    if found is not None and found != _DEMUXERS[format_name]:
        raise BadAudio(f"is in {found}, and 'format' is {format_name!r}")


def is_wav(data: bytes) -> bool:
    """Whether it is WAV, by its first bytes."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes, max_s: float) -> Samples:
    """Raises BadAudio."""
    chunks: dict[bytes, bytes] = {}
    for name, chunk in islice(_chunks(data), _MAX_CHUNKS):
        chunks.setdefault(name, chunk)
    head = chunks.get(b"fmt ", b"")
    if len(head) < _FORMAT.size or b"data" not in chunks:
        raise BadAudio("is a WAV file without a format, or without samples")
    kind, num_channels, rate, _, _, num_bits = _FORMAT.unpack_from(head)
    if kind == _EXTENSIBLE and len(head) >= _SUB_FORMAT.stop:
        (kind,) = struct.unpack("<H", head[_SUB_FORMAT])
    dtype = _DTYPES.get((kind, num_bits))
    if dtype is None:
        raise BadAudio(
            f"is a WAV file of format {kind} with {num_bits} bits: integers of 8 to 32 bits and "
            "floats are read"
        )
    if not 1 <= num_channels <= MAX_CHANNELS or not MIN_RATE <= rate <= MAX_RATE:
        raise BadAudio(f"has {num_channels} channels and {rate} samples a second")
    frame_bytes = num_channels * num_bits // 8
    samples = chunks[b"data"]
    num_frames = len(samples) // frame_bytes
    check_duration(num_frames / rate, max_s)
    raw = np.frombuffer(samples, dtype, num_frames * frame_bytes // np.dtype(dtype).itemsize)
    values = _as_floats(raw, kind, num_bits).reshape(num_frames, num_channels).mean(axis=1)
    if not np.isfinite(values).all():
        raise BadAudio("has samples that are no numbers")
    return Samples(values, rate)


def check_duration(seconds: float, max_s: float) -> None:
    """Raises BadAudio."""
    if seconds > max_s:
        raise BadAudio(f"is longer than {max_s:g} s (--max-audio-s)")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a file; where it is cut, or does not know its length, what is there."""
    place = 12
    while place + 8 <= len(data):
        name, (num_bytes,) = data[place : place + 4], struct.unpack_from("<I", data, place + 4)
        yield name, data[place + 8 : place + 8 + num_bytes]
        place += 8 + num_bytes + num_bytes % 2


def _as_floats(raw: npt.NDArray[Any], kind: int, num_bits: int) -> npt.NDArray[np.float32]:
    if num_bits == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        raw, num_bits = wide.view("<i4")[:, 0], 32
    values: npt.NDArray[np.float32] = raw.astype(np.float32)
    if kind == _INTEGERS:
        values -= 128.0 if num_bits == 8 else 0.0
        values /= float(1 << (num_bits - 1))
    return values


def demuxer_of(data: bytes) -> str | None:
    """The one that reads it, by its first bytes; None: none that is taken.

    FFmpeg is never left to guess: some of its formats are lists of other files.
    """
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6)
    return "mp3" if data[:3] == b"ID3" or is_frame else None


def read_container(data: bytes, demuxer: str, max_s: float) -> Samples:
    """Raises BadAudio."""
    try:
        import av
    except ImportError as exc:
        raise BadAudio(
            f"is in {demuxer}, and this server reads WAV alone: its operator may "
            f"install PyAV ({INSTALL})"
        ) from exc
    try:
        with av.open(io.BytesIO(data), format=demuxer, options={"max_streams": "8"}) as container:
            if not container.streams.audio:
                raise BadAudio("is a file without a stream of audio")
            return _decoded(container, max_s)
    except (av.FFmpegError, ValueError, MemoryError) as exc:
        raise BadAudio(f"cannot be decoded: {exc}") from exc


def _decoded(container: Any, max_s: float) -> Samples:
    """Brought to the model's rate on the way: what is small may be long, and of any rate."""
    parts, num_samples = [], 0
    for frame in _frames(container):
        part = frame.to_ndarray()[0]
        num_samples += len(part)
        check_duration(num_samples / SAMPLE_RATE, max_s)
        parts.append(part)
    if not parts:
        raise BadAudio("is empty")
    return Samples(np.concatenate(parts), SAMPLE_RATE)


def _frames(container: Any) -> Iterator[Any]:
    """The frames of one channel, in floats."""
    import av

    resampler = av.AudioResampler("fltp", "mono", SAMPLE_RATE)
    for frame in container.decode(audio=0):
        yield from resampler.resample(frame)
    yield from resampler.resample(None)
