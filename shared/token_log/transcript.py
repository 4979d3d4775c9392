"""What the tokens of a transcript mean: windows of audio, one after the other, and their segments.

All of it is a function of the tokens: the engine finds where to hear on, whoever goes on with a
request does too, and frontends find the segments. The rules are Whisper's: a segment ends where two
timestamps stand side by side; what a window has behind its last pair is heard again by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.protocol.hearing_card import (
    FRAMES_PER_S,
    FRAMES_PER_TICK,
    WINDOW_FRAMES,
    TranscriptRule,
)


class Segment(NamedTuple):
    """A piece of text, and when it is heard."""

    start_s: float
    end_s: float
    token_ids: tuple[int, ...]  # without timestamps
    seek: int  # first frame of its window


class Transcript:
    """Grows token by token."""

    def __init__(self, rule: TranscriptRule) -> None:
        self._rule = rule
        self.language_id: int | None = None  # that the first token has named
        self.seek = 0  # first frame of the window that is heard now
        self.segments: list[Segment] = []  # complete
        self.window_ids: list[int] = []  # tokens of this window
        self._num_emitted = 0  # of these, which complete segments have
        self._is_first = True  # window

    @property
    def needs_language(self) -> bool:
        return self._rule.detects_language and self.language_id is None

    @property
    def is_first_window(self) -> bool:
        return self._is_first

    @property
    def is_over(self) -> bool:
        """All audio has been heard."""
        return self.seek >= self._rule.num_frames

    def add(self, token_id: int) -> bool:
        """Whether a window ends with it, or it tells the language: what follows is of another
        prompt.
        """
        if self.is_over:
            return False
        if self.needs_language:
            self.language_id = token_id
            return True
        if token_id == self._rule.end_id:
            self._end_window()
            return True
        ids = self.window_ids
        ids.append(token_id)
        if len(ids) > 1 and self._is_timestamp(ids[-2]) and self._is_timestamp(token_id):
            self._add_segment(ids[self._num_emitted : -1], ends_at=ids[-2])
            self._num_emitted = len(ids) - 1
        if len(ids) < self._max_window_tokens:
            return False
        self._end_window()
        return True

    @property
    def _max_window_tokens(self) -> int:
        return self._rule.max_first_tokens if self._is_first else self._rule.max_tokens

    @property
    def _num_window_frames(self) -> int:
        return min(self._rule.num_frames - self.seek, WINDOW_FRAMES)

    def _end_window(self) -> None:
        ids = self.window_ids
        num_frames = self._num_window_frames
        ends_in_silence = len(ids) > 1 and self._is_timestamp(ids[-1])
        ends_in_silence = ends_in_silence and not self._is_timestamp(ids[-2])
        if not self._num_emitted:
            last = next((each for each in reversed(ids) if self._is_timestamp(each)), None)
            has_end = last is not None and last != self._rule.timestamp_id
            self._add_segment(ids, begins_at_window=True, ends_at=last if has_end else None)
        elif ends_in_silence:
            self._add_segment(ids[self._num_emitted :], ends_at=ids[-1])
        else:  # the unfinished segment is heard again
            heard = (ids[self._num_emitted - 1] - self._rule.timestamp_id) * FRAMES_PER_TICK
            if heard > 0:  # else no time has passed, and it would be heard for ever
                num_frames = min(heard, num_frames)
        self.seek += num_frames
        self.window_ids = []
        self._num_emitted = 0
        self._is_first = False

    def _add_segment(
        self, ids: Sequence[int], *, ends_at: int | None, begins_at_window: bool = False
    ) -> None:
        """`ends_at`: a timestamp; None: with its window."""
        text_ids = tuple(each for each in ids if not self._is_timestamp(each))
        if not text_ids:
            return
        has_start = not begins_at_window and self._is_timestamp(ids[0])
        start = self.seek + (self._frames(ids[0]) if has_start else 0)
        if ends_at is None:
            end = self.seek + self._num_window_frames
        else:
            end = self.seek + self._frames(ends_at)
        self.segments.append(Segment(start / FRAMES_PER_S, end / FRAMES_PER_S, text_ids, self.seek))

    def _frames(self, timestamp: int) -> int:
        """From the beginning of the window."""
        return (timestamp - self._rule.timestamp_id) * FRAMES_PER_TICK

    def _is_timestamp(self, token_id: int) -> bool:
        return token_id >= self._rule.timestamp_id
