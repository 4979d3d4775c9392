"""Beats: whoever waits for them wakes up together with others, and never much too early or late.

Looks are rare while nobody goes by them, and never late for somebody who does.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from shared.event_wait import LookPace, beat_s
from tests.time_to_err import time_to_err


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


async def test_looks_are_rare_until_they_are_used() -> None:
    pace = LookPace(0.02, 60.0)
    waiting = asyncio.create_task(pace.wait())
    await time_to_err(0.1)
    assert not waiting.done()
    pace.use()
    await asyncio.wait_for(waiting, 1)


async def test_what_was_used_is_looked_at_again_after_the_interval() -> None:
    pace, begun_at = LookPace(0.1, 60.0), time.monotonic()
    waiting = asyncio.create_task(pace.wait())
    await asyncio.sleep(0)
    pace.use()  # fresh enough
    await asyncio.wait_for(waiting, 5)
    assert time.monotonic() - begun_at >= 0.1


async def test_something_new_to_look_for_waits_for_nothing() -> None:
    pace = LookPace(60.0, 60.0)
    pace.look_soon()
    await asyncio.wait_for(pace.wait(), 1)


async def test_a_look_that_failed_is_followed_by_one_that_is_not_idle() -> None:
    pace = LookPace(0.02, 60.0)
    pace.note_failure()
    await asyncio.wait_for(pace.wait(), 5)
    waiting = asyncio.create_task(pace.wait())
    await time_to_err(0.1)
    assert not waiting.done(), "the next one did not fail"
    waiting.cancel()
