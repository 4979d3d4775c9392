"""A window of audio, as the engine holds it: what a request of the scheduler hears."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.protocol.hearing_card import WINDOW_FRAMES, HearingCard
from worker.engine_link.engine_messages import AddRequest


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """The audio of a run."""

    frames: npt.NDArray[np.float32]  # [num_frames and some of silence, num_mel_bins]
    digest: bytes

    @classmethod
    def maybe_of(cls, command: AddRequest, card: HearingCard | None) -> Self | None:
        """The window of a run that `Ears.error` has found right; None: it has none."""
        if command.audio is None or card is None:
            return None
        frames = np.frombuffer(command.audio.frames, "<f4").reshape(-1, card.num_mel_bins)
        return cls(frames, command.audio.digest)

    def window(self, seek: int) -> npt.NDArray[np.float32]:
        """[num_mel_bins, WINDOW_FRAMES]; behind its end, silence as the last frame has it."""
        heard = self.frames[seek : seek + WINDOW_FRAMES]
        missing = WINDOW_FRAMES - len(heard)
        return np.pad(heard, ((0, missing), (0, 0)), mode="edge").T.copy()


@dataclass(slots=True, eq=False)
class ReqWindow:
    """What a request hears, and the rules of what it may say."""

    sound: Sound
    seek: int  # first frame
    namespace: bytes  # only runs with an equal one share what has been made of it
    card: HearingCard
    detects_language: bool  # its one token; else it transcribes
    is_heard: bool = field(default=False, init=False)  # the encoder has been through it

    @property
    def key(self) -> tuple[bytes, bytes, int]:
        """Windows of an equal one sound the same."""
        return self.namespace, self.sound.digest, self.seek

    @property
    def prefix_namespace(self) -> bytes:
        """Under which its tokens' keys and values are shared."""
        place = self.seek.to_bytes(4, "little")
        return hashlib.sha256(self.namespace + self.sound.digest + place).digest()


@dataclass(frozen=True, slots=True)
class Ears:
    """How an engine hears."""

    card: HearingCard | None = None  # None: not at all

    def error(self, command: AddRequest) -> str | None:
        """What is wrong with the audio of a run; None when nothing is."""
        audio, card = command.audio, self.card
        if card is None:
            return None if audio is None else "the model takes no audio"
        if audio is None:
            return "the model hears, and the request has no audio"
        frame_bytes = 4 * card.num_mel_bins
        num_frames, rest = divmod(len(audio.frames), frame_bytes)
        if rest or not 0 < audio.num_frames < num_frames:
            return (
                f"its audio has {len(audio.frames)} bytes for {audio.num_frames} frames of "
                f"{card.num_mel_bins} numbers"
            )
        return None


DEAF = Ears()
