"""Waiting for an event with a limit, without losing a cancellation, and for the time to look again.

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


class LookPace:
    """When to look again at what others change: often while somebody goes by it.

    Looks are `interval_s` apart while what they found is used, else `idle_s`.
    Whoever uses what is older than the interval makes the next look begin at once.
    """

    def __init__(self, interval_s: float, idle_s: float) -> None:
        self._interval_s = interval_s
        self._idle_s = idle_s
        self._is_used = False  # since the last look
        self._has_failed = False  # the last look
        self._due_at = float("-inf")  # if it is used
        self._wake = asyncio.Event()

    def use(self) -> None:
        """Somebody goes by what the last look found."""
        self._is_used = True
        if time.monotonic() >= self._due_at:
            self._wake.set()

    def look_soon(self) -> None:
        """There is something that the last look did not look for."""
        self._wake.set()

    def note_failure(self) -> None:
        """The look found nothing out: the next one comes as soon as if it were used."""
        self._has_failed = True

    async def wait(self, interval_s: float | None = None) -> None:
        """From the end of one look until the next is due; `interval_s` in place of the usual."""
        interval_s = self._interval_s if interval_s is None else interval_s
        self._due_at = time.monotonic() + interval_s
        self._is_used = False
        must_look = self._has_failed
        self._has_failed = False
        if not (await wait_event(self._wake, interval_s) or self._is_used or must_look):
            await wait_event(self._wake, beat_s(self._idle_s))
        self._wake.clear()
