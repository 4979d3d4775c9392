"""Beats: whoever waits for them wakes up together with others, and never much too early or late."""

from __future__ import annotations

import random
import time

import pytest

from shared.event_wait import beat_s


def test_beats_of_several_intervals_fall_together(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    for _ in range(200):
        now = draw.uniform(0, 1e6)
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        seconds = {(now + beat_s(interval_s)) % 1.0 for interval_s in (1.0, 2.0, 10.0)}
        assert max(seconds) - min(seconds) < 1e-6 or max(seconds) - min(seconds) > 1 - 1e-6
        for interval_s in (0.02, 1.0, 10.0):
            assert 0.099 * interval_s < beat_s(interval_s) < 1.101 * interval_s


def test_a_timer_that_expires_a_little_early_skips_no_beat_and_has_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    due_at = 100.0 + beat_s(1.0)
    for early_s in (-0.002, 0.0, 0.002):
        monkeypatch.setattr(time, "monotonic", lambda at=due_at - early_s: at)
        assert 0.99 < beat_s(1.0) < 1.01
