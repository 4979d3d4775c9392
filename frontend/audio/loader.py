"""The audio of a request: decoded, and made into what the model hears."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from frontend.jobs.job import Caller
from frontend.limits.work_limits import AudioLimits
from shared.errors import InvalidRequest
from shared.protocol.hearing_card import SAMPLE_RATE, HearingCard

_FIELD = "file"
_MIN_S = 0.1


@dataclass(frozen=True, slots=True)
class LoadedAudio:
    """What the model hears of a file."""

    num_frames: int  # that are not the silence behind it
    frames: bytes  # [num_frames and some of silence, num_mel_bins] float32, little-endian
    digest: bytes
    seconds: float


class AudioLoader:
    """One thread: what it computes with is imported when somebody is heard."""

    def __init__(self, limits: AudioLimits) -> None:
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audio")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def load(self, text: str | None, card: HearingCard, caller: Caller) -> LoadedAudio:
        """Of a file in base64. Raises InvalidRequest."""
        if not text:
            raise InvalidRequest(f"'{_FIELD}' is required", param=_FIELD, code="missing_field")
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, _load, text, card, self._limits)
        return await caller.presence.during(work)


def _load(text: str, card: HearingCard, limits: AudioLimits) -> LoadedAudio:
    """Slow: for a thread. Raises InvalidRequest."""
    if len(text) > (limits.max_bytes + 2) // 3 * 4:
        raise _refused(f"has more than {limits.max_bytes} bytes (--max-audio-bytes)")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _refused(f"is not in base64: {exc}") from exc
    return load_audio(data, card, limits.max_s)


def load_audio(data: bytes, card: HearingCard, max_s: float) -> LoadedAudio:
    """Slow: for a thread. Raises InvalidRequest."""
    from frontend.audio.audio_file import BadAudio, read_audio
    from frontend.audio.spectrogram import log_mel, num_frames_of, resampled

    try:
        samples = read_audio(data, max_s)
        seconds = len(samples.values) / samples.rate
        if seconds < _MIN_S:
            raise BadAudio(f"is shorter than {_MIN_S:g} s")
    except BadAudio as exc:
        raise _refused(str(exc)) from exc
    values = resampled(samples.values, samples.rate, SAMPLE_RATE)
    frames = log_mel(values, card.num_mel_bins).astype("<f4").tobytes()
    digest = hashlib.sha256(frames).digest()
    return LoadedAudio(num_frames_of(len(values)), frames, digest, seconds)


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"'{_FIELD}' is audio that {why}", param=_FIELD, code="invalid_audio")
