"""Gives a request under which workers died a worker for itself: nobody else dies with it again.

When workers die that hold thousands, all of those are suspects, and hardly any is guilty: so many
are tried some at a time, beside whatever else runs. That they are many is seen from those that
are here at once, and from those that were alone one after the other and did no harm.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.protocol.dead import Crash
from shared.telemetry.log import get_logger
from worker.capacity.capacity import Capacity
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.metrics.request_metrics import RequestMetrics
from worker.runs.token_log import TokenLog
from worker.settlement.hand_over import HandOver

_FINISH_S = 0.5  # what ends by itself this soon need not move
_TICK_S = 0.25
_CONFIRM_S = 1.0
_ALONE = 8  # so many suspects, or fewer, are tried one by one; of more, one in so many at a time
_ALONE_WITHIN_S = 120.0
_MAX_CRASHES = 6  # whoever was there so often is tried alone
_KNOWN_S = 15.0  # a suspect that has not come again for so long is elsewhere
_AGAIN_S = 1.0  # until one comes again that cannot be tried now
_EACH_S = 0.005  # for each suspect: so that no more than 200 a second come

log = get_logger(__name__)


class Trial(enum.Enum):
    """How a suspect is tried now."""

    ALONE = "alone"  # nothing else is here
    IN_COMPANY = "in company"
    LATER = "later"


class Quarantine:
    """One suspect at a time, while they are few. While it is in here, the room has no place for
    anybody else.
    """

    def __init__(
        self,
        held_requests: HeldRequests,
        capacity: Capacity,
        hand_over: HandOver,
        token_log: TokenLog,
        metrics: RequestMetrics,
        hand_over_timeout_s: float,
    ) -> None:
        self._held_requests = held_requests
        self._capacity = capacity
        self._hand_over = hand_over
        self._token_log = token_log
        self._metrics = metrics
        self._hand_over_timeout_s = hand_over_timeout_s
        self._met_at: dict[str, float] = {}  # of suspects not proven yet, by request id
        self._num_in_company = 0
        self._acquitted_alone_at: deque[float] = deque(maxlen=_ALONE)

    def trial(self, suspect: HeldRequest, crashes: tuple[Crash, ...]) -> Trial:
        """What is to be done with a suspect that was claimed."""
        now = time.monotonic()
        self._met_at.pop(suspect.rid, None)
        self._met_at[suspect.rid] = now  # the latest last
        while now - (oldest := next(iter(self._met_at.items())))[1] > _KNOWN_S:
            del self._met_at[oldest[0]]
        if self._capacity.is_quarantined:
            return Trial.LATER
        if len(crashes) >= _MAX_CRASHES or not self._are_many(now):
            return Trial.ALONE
        num_places = max(len(self._met_at) // _ALONE, 1)
        return Trial.IN_COMPANY if self._num_in_company < num_places else Trial.LATER

    def _are_many(self, now: float) -> bool:
        """More suspects than shall be tried one by one are here, or were."""
        alone = self._acquitted_alone_at
        were_many = len(alone) == _ALONE and now - alone[0] < _ALONE_WITHIN_S
        return were_many or len(self._met_at) > _ALONE

    @property
    def again_s(self) -> float:
        """When a suspect shall come again that cannot be tried now."""
        return max(_AGAIN_S, _EACH_S * len(self._met_at))

    @asynccontextmanager
    async def in_company(self, suspect: HeldRequest) -> AsyncIterator[None]:
        """It has one of the places for suspects."""
        self._num_in_company += 1
        log.info("tried_in_company", rid=suspect.rid, num_suspects=len(self._met_at))
        try:
            yield
        finally:
            self._num_in_company -= 1

    @asynccontextmanager
    async def of(self, suspect: HeldRequest, crashes: tuple[Crash, ...]) -> AsyncIterator[None]:
        """The room is the suspect's; everything else is out when the body begins, unless the
        suspect was revoked or ended before. Who enters has seen that no other suspect is in here.
        """
        assert not self._capacity.is_quarantined
        self._capacity.is_quarantined = True
        self._metrics.quarantines.inc()
        log.warning(
            "quarantined",
            rid=suspect.rid,
            num_crashes=len(crashes),
            workers=[crash.worker for crash in crashes],
        )
        try:
            await self._move_others(suspect)
            yield
            if suspect.has_progressed:
                self._acquitted_alone_at.append(time.monotonic())
        finally:
            self._capacity.is_quarantined = False

    async def wait_proven(self, suspect: HeldRequest) -> None:
        """Until the log has its first progress, or it is gone: others may come in again."""
        suspect.watched = asyncio.Event()
        if not suspect.has_progressed and suspect.state is not HoldState.DROPPED:
            await suspect.watched.wait()
        if suspect.has_progressed:
            self._met_at.pop(suspect.rid, None)
            await self._token_log.wait_flushed(_CONFIRM_S)
            log.info("acquitted", rid=suspect.rid)

    async def _move_others(self, suspect: HeldRequest) -> None:
        """They finish within a moment, or go on elsewhere."""
        if await self._held_requests.wait_only(suspect, _FINISH_S):
            return
        await self._hand_over.release_all(self._hand_over_timeout_s, crashed=False, spare=suspect)
        while not suspect.is_revoked and not suspect.is_ended:
            if await self._held_requests.wait_only(suspect, _TICK_S):
                return
