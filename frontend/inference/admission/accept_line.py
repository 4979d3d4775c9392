"""The line before the queue: how many requests are being accepted at a time, and who comes next.

To check a request, to encode it and to store it takes a millisecond or two. When more come than
that, all of them would progress a little, and none would be stored in time; so few are worked on at
once, and the others stand in line, tenants in turn, as long as their clients wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from frontend.inference.admission.drain_rate import DrainRate, Sample
from frontend.jobs.job import Presence, Unseen
from frontend.tenants.tenant_line import TenantLine

MAX_ACTIVE = 64
_TURN_S = 0.5  # who waits for an image, or for other requests, holds up nobody for longer
_UNWATCHED_S = 1.0  # to see whether a client is still there costs more than such a wait
_SAMPLE_S = 0.5
_UNSEEN = Unseen()


class _Waiting(NamedTuple):
    done: asyncio.Future[None]

    @property
    def was_called(self) -> bool:
        return self.done.done() and not self.done.cancelled()


class _Turn:
    """Ends once, at the latest after a while."""

    __slots__ = ("_line", "_timer")

    def __init__(self, line: AcceptLine) -> None:
        self._line: AcceptLine | None = line
        self._timer = asyncio.get_running_loop().call_later(_TURN_S, self._end)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._end()

    def _end(self) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            line.leave()


class AcceptLine:
    """At most `max_active` requests at a time are between their arrival and the queue."""

    def __init__(self, max_active: int = MAX_ACTIVE) -> None:
        self._max_active = max_active
        self._num_active = 0
        self._num_left = 0
        self._line: TenantLine[_Waiting] = TenantLine()
        self.num_waiting = 0
        self._rate = DrainRate()  # since there is a line
        self._sampled_at = float("-inf")

    def num_of(self, tenant_id: str) -> int:
        """How many of a tenant stand in line."""
        return self._line.num_of(tenant_id)

    @property
    def wait_s(self) -> float:
        """How long who comes now will stand in line, as fast as it moves; inf: it does not."""
        self._sample(time.monotonic())
        rate = self._rate.per_s
        return self.num_waiting / rate if rate else float("inf")

    async def wait(
        self, tenant_id: str, presence: Presence = _UNSEEN, patience_s: float = float("inf")
    ) -> float:
        """Until it is this request's `turn`, which begins at once; returns how long it took.

        Raises TimeoutError, or RequestCancelled when its client is gone.
        """
        if self._num_active < self._max_active and not self.num_waiting:
            self._num_active += 1
            return 0.0
        since = time.monotonic()
        await self._wait(tenant_id, presence, patience_s)
        return time.monotonic() - since

    def turn(self) -> _Turn:
        """The turn of who has waited for it."""
        return _Turn(self)

    def leave(self) -> None:
        """A turn is over."""
        self._num_active -= 1
        self._num_left += 1
        self._call_next()

    async def _wait(self, tenant_id: str, presence: Presence, patience_s: float) -> None:
        """Returns when it counts as active."""
        if not self.num_waiting:
            self._rate, self._sampled_at = DrainRate(), float("-inf")
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self._line.add(tenant_id, waiting)
        self.num_waiting += 1
        self._sample(time.monotonic())
        try:
            unwatched_s = min(patience_s, _UNWATCHED_S)
            called, _ = await asyncio.wait([waiting.done], timeout=unwatched_s)
            if not called:
                left_s = patience_s - unwatched_s
                async with asyncio.timeout(left_s if left_s < float("inf") else None):
                    await presence.during(waiting.done)
        except BaseException:
            if waiting.was_called:
                self._num_active -= 1  # it was called, and left in the same moment
                self._call_next()
            else:
                waiting.done.cancel()
                self.num_waiting -= 1
            raise

    def _call_next(self) -> None:
        while self._num_active < self._max_active and (waiting := self._line.next()) is not None:
            self.num_waiting -= 1
            self._num_active += 1
            waiting.done.set_result(None)

    def _sample(self, now: float) -> None:
        if now - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = now
            self._rate.add(Sample(now, self.num_waiting, self._num_left))
