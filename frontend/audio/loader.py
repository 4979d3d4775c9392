"""The audio of a request: decoded, and made into what the model hears."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from frontend.audio.audio_file import BadAudio, check_format, read_audio
from frontend.audio.audio_source import AudioSource
from frontend.audio.spectrogram import HOP, log_mel, num_frames_of, resampled
from frontend.jobs.job import Caller
from frontend.limits.work_limits import AudioLimits
from shared.errors import InvalidRequest
from shared.protocol.hearing_card import SAMPLE_RATE, WINDOW_FRAMES, HearingCard
from shared.protocol.sound_card import SoundCard

_FIELD = "file"
_MIN_S = 0.1

# What is behind the URL of audio, of so many bytes at most.
ReadUrl: TypeAlias = Callable[[AudioSource, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class LoadedAudio:
    """What the model hears of a file."""

    num_frames: int  # that are not the silence behind it
    frames: bytes  # [num_frames and some of silence, num_mel_bins] float32, little-endian
    digest: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Spectrogram:
    """The spectrogram of a file of audio."""

    frames: npt.NDArray[np.float32]  # [num_frames and some of silence, num_mel_bins]
    num_samples: int  # at the model's rate
    seconds: float


class AudioLoader:
    """One thread: nobody's audio takes all of the machine."""

    def __init__(self, limits: AudioLimits) -> None:
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audio")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def max_audios(self) -> int:
        """That a chat may have."""
        return self._limits.max_audios

    async def load(self, text: str | None, card: HearingCard, caller: Caller) -> LoadedAudio:
        """Loads a file in base64. Raises InvalidRequest."""
        if not text:
            raise InvalidRequest(f"'{_FIELD}' is required", param=_FIELD, code="missing_field")
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, _load, text, card, self._limits)
        return await caller.presence.during(work)

    async def spectrograms(
        self, sources: Sequence[AudioSource], card: SoundCard | None, read_url: ReadUrl
    ) -> AsyncIterator[Spectrogram]:
        """The spectrograms of all audio of a chat, one behind the other: so they take as much
        memory as the longest may. Raises InvalidRequest, and what `read_url` does.
        """
        seconds, loop = 0.0, asyncio.get_running_loop()
        for source in sources:
            assert card is not None, "the model takes audio"
            data = b"" if source.file else await read_url(source, self._limits.max_bytes)
            work = loop.run_in_executor(self._thread, _read, source, data, card, self._limits)
            spectrogram = await work
            seconds += spectrogram.seconds
            if seconds > self._limits.max_s:
                raise source.refused(
                    f"is audio, {seconds:.1f} s long with what is before it: a request may have "
                    f"{self._limits.max_s:g} s (--max-audio-s)"
                )
            yield spectrogram


def _load(text: str, card: HearingCard, limits: AudioLimits) -> LoadedAudio:
    """Slow: for a thread. Raises InvalidRequest."""
    try:
        return load_audio(_bytes_of(text, limits), card, limits.max_s)
    except BadAudio as exc:
        raise _refused(str(exc)) from exc


def _read(source: AudioSource, data: bytes, card: SoundCard, limits: AudioLimits) -> Spectrogram:
    """Slow: for a thread. Raises InvalidRequest."""
    try:
        if source.file is not None:
            data = _bytes_of(source.file.data, limits)
            check_format(data, source.file.format)
        spectrogram = spectrogram_of(data, card.num_mel_bins, limits.max_s)
    except BadAudio as exc:
        raise source.refused(f"is audio that {exc}") from exc
    most = card.max_windows * WINDOW_FRAMES * HOP
    if most and spectrogram.num_samples > most:
        raise source.refused(
            f"is audio {spectrogram.seconds:.2f} s long, of which the model hears "
            f"{most // SAMPLE_RATE} s at most"
        )
    return spectrogram


def _bytes_of(text: str, limits: AudioLimits) -> bytes:
    """The bytes of a file in base64. Raises BadAudio."""
    if len(text) > (limits.max_bytes + 2) // 3 * 4:
        raise BadAudio(f"has more than {limits.max_bytes} bytes (--max-audio-bytes)")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise BadAudio(f"is not in base64: {exc}") from exc


def load_audio(data: bytes, card: HearingCard, max_s: float) -> LoadedAudio:
    """Slow: for a thread. Raises InvalidRequest."""
    try:
        heard = spectrogram_of(data, card.num_mel_bins, max_s)
    except BadAudio as exc:
        raise _refused(str(exc)) from exc
    frames = heard.frames.tobytes()
    digest = hashlib.sha256(frames).digest()
    return LoadedAudio(num_frames_of(heard.num_samples), frames, digest, heard.seconds)


def spectrogram_of(data: bytes, num_mel_bins: int, max_s: float) -> Spectrogram:
    """Slow: for a thread. Raises BadAudio."""
    samples = read_audio(data, max_s)
    seconds = len(samples.values) / samples.rate
    if seconds < _MIN_S:
        raise BadAudio(f"is shorter than {_MIN_S:g} s")
    values = resampled(samples.values, samples.rate, SAMPLE_RATE)
    return Spectrogram(log_mel(values, num_mel_bins).astype("<f4"), len(values), seconds)


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"'{_FIELD}' is audio that {why}", param=_FIELD, code="invalid_audio")
