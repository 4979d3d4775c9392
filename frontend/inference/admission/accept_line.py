"""The line before the queue: how many requests are being accepted at a time, and who is sent away.

To check a request, to encode it and to store it takes a millisecond or two. When more come than
that, all of them would progress a little, and none would be stored in time; so few are worked on at
once, and the others stand in line, tenants in turn. A burst is waited out. If more keep coming than
leave, those who have waited too long are refused, and so are new ones, before they cost anything.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from shared.errors import Overloaded

MAX_ACTIVE = 64
_TURN_S = 0.5  # who waits for an image, or for other requests, holds up nobody for longer
_LOOK_S = 0.1
_WINDOW_S = 0.5
_LATE_S = 0.8  # a line that takes longer than that is too long, if it grows
_LAG_S = 0.2  # so is a loop that comes so late
_MAX_LATE = 4  # looks in a row: no burst
_GROWTH = 1.2  # arrivals for each that leaves
_WAIT_S = 0.4  # under overload


class _Sample(NamedTuple):
    at: float
    num_arrived: int
    num_left: int


class OverloadWatch:
    """Tells a burst, which ends by itself, from more requests than can be accepted.

    Not all who wait stand in line: a loop that comes late has not read them yet.
    """

    def __init__(self) -> None:
        self.is_overloaded = False
        self.left_per_s = 0.0
        self._samples: deque[_Sample] = deque()
        self._num_late = 0  # looks in a row at which the line was too long, and had grown

    def look(
        self, now: float, num_arrived: int, num_left: int, num_waiting: int, lag_s: float
    ) -> None:
        """Counters since the start, the line as it is, and how late this look comes."""
        samples = self._samples
        samples.append(_Sample(now, num_arrived, num_left))
        while len(samples) > 2 and samples[1].at <= now - _WINDOW_S:
            samples.popleft()
        if len(samples) < 2:
            return
        first, before = samples[0], samples[-2]
        self.left_per_s = (num_left - first.num_left) / (now - first.at)
        has_grown = num_arrived - before.num_arrived > _GROWTH * (num_left - before.num_left)
        is_late = num_waiting > _LATE_S * self.left_per_s or lag_s > _LAG_S
        self._num_late = self._num_late + 1 if is_late and has_grown else 0
        if self._num_late >= _MAX_LATE:
            self.is_overloaded = True
        elif num_waiting <= _LATE_S / 8 * self.left_per_s and lag_s < _LAG_S:
            self.is_overloaded = False

    def forget(self) -> None:
        """The line is empty."""
        self.is_overloaded = False
        self._num_late = 0
        self._samples.clear()

    @property
    def room(self) -> int:
        """How many may stand in line under overload: they leave it in time."""
        return max(MAX_ACTIVE, int(_WAIT_S * self.left_per_s))


class _Waiting(NamedTuple):
    since: float
    turn: asyncio.Future[None]

    @property
    def was_called(self) -> bool:
        turn = self.turn
        return turn.done() and not turn.cancelled() and turn.exception() is None


class _Turn:
    """Ends once, at the latest after a while."""

    def __init__(self, line: AcceptLine) -> None:
        self._line: AcceptLine | None = line

    def end(self) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            line.leave()


class AcceptLine:
    """At most `max_active` requests at a time are between their arrival and the queue."""

    def __init__(self, max_active: int = MAX_ACTIVE) -> None:
        self._max_active = max_active
        self._num_active = 0
        self._num_waiting = 0
        self._num_arrived = 0
        self._num_left = 0
        self._tenants: OrderedDict[str, deque[_Waiting]] = OrderedDict()  # the next one first
        self._watch = OverloadWatch()
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0  # when the next look is due

    @property
    def is_full(self) -> bool:
        """Whether who comes now is sent away."""
        return self._watch.is_overloaded and self._num_waiting >= self._watch.room

    def overload(self) -> Overloaded | None:
        """Why who comes now is sent away; None: there is room."""
        return self._refusal() if self.is_full else None

    def _refusal(self) -> Overloaded:
        return Overloaded(
            f"More requests come than the queue can take: {self._num_waiting} stand in line, "
            f"{self._watch.left_per_s:.0f} a second leave it. This one was not accepted; try "
            "again later.",
            1,
        )

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Wait until it is this request's turn. Raises Overloaded."""
        self._num_arrived += 1
        if self._timer is None:
            self._plan_look()
        if (refusal := self.overload()) is not None:
            raise refusal
        if self._num_active < self._max_active and not self._num_waiting:
            self._num_active += 1
        else:
            await self._wait(tenant_id)
        turn = _Turn(self)
        timer = asyncio.get_running_loop().call_later(_TURN_S, turn.end)
        try:
            yield
        finally:
            timer.cancel()
            turn.end()

    def leave(self) -> None:
        """A turn is over."""
        self._num_active -= 1
        self._num_left += 1
        self._call_next()

    async def _wait(self, tenant_id: str) -> None:
        """Returns when it counts as active."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(time.monotonic(), loop.create_future())
        self._tenants.setdefault(tenant_id, deque()).append(waiting)
        self._num_waiting += 1
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.was_called:
                self._num_active -= 1  # it was called, and left in the same moment
                self._call_next()
            raise

    def _call_next(self) -> None:
        while self._num_active < self._max_active and self._num_waiting:
            tenant_id = next(iter(self._tenants))
            waiting = self._take_first(tenant_id)
            if tenant_id in self._tenants:
                self._tenants.move_to_end(tenant_id)
            if not waiting.turn.done():  # else it has left
                self._num_active += 1
                waiting.turn.set_result(None)

    def _take_first(self, tenant_id: str) -> _Waiting:
        line = self._tenants[tenant_id]
        waiting = line.popleft()
        self._num_waiting -= 1
        if not line:
            del self._tenants[tenant_id]
        return waiting

    def _look(self) -> None:
        if not self._num_active and not self._num_waiting:
            self._timer = None
            self._watch.forget()
            return
        now = time.monotonic()
        lag_s = now - self._look_at
        self._watch.look(now, self._num_arrived, self._num_left, self._num_waiting, lag_s)
        if self._watch.is_overloaded:
            self._refuse_late(now)
        self._plan_look()

    def _plan_look(self) -> None:
        self._look_at = time.monotonic() + _LOOK_S
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _refuse_late(self, now: float) -> None:
        for tenant_id, line in list(self._tenants.items()):
            while line and now - line[0].since > _WAIT_S:
                waiting = self._take_first(tenant_id)
                if not waiting.turn.done():
                    waiting.turn.set_exception(self._refusal())
