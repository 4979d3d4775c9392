"""When to look again at what others change: often while somebody goes by it."""

from __future__ import annotations

import asyncio
import time

from shared.event_wait import beat_s, wait_event


class LookPace:
    """Looks are `interval_s` apart while what they found is used, else `idle_s`.

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
