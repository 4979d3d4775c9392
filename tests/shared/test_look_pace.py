"""Looks are rare while nobody goes by them, and never late for somebody who does."""

from __future__ import annotations

import asyncio
import time

from shared.look_pace import LookPace
from tests.time_to_err import time_to_err


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
