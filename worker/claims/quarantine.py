"""Gives a request under which workers died a worker for itself: nobody else dies with it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.protocol.dead import Crash
from shared.telemetry.log import get_logger
from worker.capacity.capacity import Capacity
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.runs.token_log import TokenLog
from worker.settlement.hand_over import HandOver
from worker.telemetry import WorkerMetrics

_FINISH_S = 0.5  # what ends by itself this soon need not move
_TICK_S = 0.25
_CONFIRM_S = 1.0

log = get_logger(__name__)


class Quarantine:
    """One suspect at a time. While it is in here, the room has no place for anybody else."""

    def __init__(
        self,
        held_requests: HeldRequests,
        capacity: Capacity,
        hand_over: HandOver,
        token_log: TokenLog,
        metrics: WorkerMetrics,
        hand_over_timeout_s: float,
    ) -> None:
        self._held_requests = held_requests
        self._capacity = capacity
        self._hand_over = hand_over
        self._token_log = token_log
        self._metrics = metrics
        self._hand_over_timeout_s = hand_over_timeout_s

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
        finally:
            self._capacity.is_quarantined = False

    async def wait_proven(self, suspect: HeldRequest) -> None:
        """Until the log has its first progress, or it is gone: others may come in again."""
        suspect.watched = asyncio.Event()
        if not suspect.has_progressed and suspect.state is not HoldState.DROPPED:
            await suspect.watched.wait()
        if suspect.has_progressed:
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
