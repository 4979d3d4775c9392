"""How a model hears: what audio is made into, and the tokens that say what is to be made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

SAMPLE_RATE = 16_000
FRAMES_PER_S = 100  # of a spectrogram
WINDOW_FRAMES = 3000  # that are heard at once
NUM_SOUNDS = WINDOW_FRAMES // 2  # vectors that the encoder makes of them
FRAMES_PER_TICK = 2  # a timestamp token is 20 ms more than the one before it
AUDIO_LEVEL = 4  # the feature level of requests with audio


class HearingCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What frontends make of audio, and workers expect of it. Named as in Whisper."""

    num_mel_bins: int
    start_id: int  # <|startoftranscript|>
    end_id: int  # <|endoftext|>: a window is over
    no_timestamps_id: int  # never chosen
    timestamp_id: int  # <|0.00|>, the first of those at the end of the vocabulary
    max_context_len: int  # of a window: its prompt and what is made of it
    previous_id: int | None = None  # <|startofprev|>, before the text that a client gives
    languages: dict[str, int] = {}  # tokens by code; empty: it knows one language, and names none
    transcribe_id: int | None = None
    translate_id: int | None = None
    suppressed_ids: tuple[int, ...] = ()  # never chosen
    begin_suppressed_ids: tuple[int, ...] = ()  # never chosen first
    max_first_tick: int | None = None  # the first timestamp is no later

    def task_ids(self, language: str, *, translates: bool) -> list[int]:
        """The end of a window's prompt. `language`: "" where it is to be found out first."""
        ids = [self.start_id]
        if not self.languages:
            return ids
        if language:
            ids.append(self.languages[language])
        task_id = self.translate_id if translates else self.transcribe_id
        assert task_id is not None, "a model of several languages has both"
        return [*ids, task_id]


class TranscriptRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a transcript's tokens are read by, beside themselves."""

    num_frames: int  # of the audio
    end_id: int
    timestamp_id: int
    max_first_tokens: int  # of the first window; its prompt may have text of the client
    max_tokens: int  # of each other
    detects_language: bool = False  # the first token names it

    @classmethod
    def of(cls, card: HearingCard, prompt_ids: Sequence[int], num_frames: int) -> Self:
        """`prompt_ids`: of the first window; without a language where that is to be found out."""
        task_ids = prompt_ids[prompt_ids.index(card.start_id) :]
        language_ids = set(card.languages.values())
        detects = bool(language_ids) and not language_ids & set(task_ids)
        return cls(
            num_frames=num_frames,
            end_id=card.end_id,
            timestamp_id=card.timestamp_id,
            max_first_tokens=card.max_context_len - len(prompt_ids) - detects,
            max_tokens=card.max_context_len - len(task_ids) - detects,
            detects_language=detects,
        )
