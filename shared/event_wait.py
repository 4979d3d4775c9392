"""Waiting for an event with a limit, without losing a cancellation.

`asyncio.wait_for` of Python 3.11 returns the result, and forgets that the task was cancelled, when
both happen in the same turn of the loop; `asyncio.timeout` does not.
"""

from __future__ import annotations

import asyncio
import os
import time

_GOLDEN = 0.618  # processes that were started one after the other do not wake up together


def beat_s(interval_s: float) -> float:
    """From now to the next beat of this process, 0.1 to 1.1 intervals.

    Whoever waits for beats wakes up with all others that do: an idle process pays for one wake-up,
    which costs more than most of what it is for.
    """
    left_s = interval_s - (time.monotonic() - beat_phase_s()) % interval_s
    return left_s if left_s > 0.1 * interval_s else left_s + interval_s


def beat_phase_s() -> float:
    """Where between two whole seconds of the monotonic clock the beats are."""
    return _GOLDEN * os.getpid() % 1.0


async def wait_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def raise_if_cancelled() -> None:
    """Call after awaiting code that uses `wait_for` inside, as nats-py does."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
