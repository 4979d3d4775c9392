"""Keeps what a worker holds: restarts the server's ack wait, restates, watches deadlines."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from shared.telemetry.log import get_logger
from worker.capacity.hang_watch import HangWatch
from worker.held.delivery import Acknowledger
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.runs.engine_pause import EnginePause
from worker.runs.token_log import TokenLog

_TICK_S = 0.5
_IDLE_TICK_S = 1.0
_IDLE_TICKS = 4  # from one look for room to the next, while nothing is held
_DEADLINE_SLACK_S = 5.0  # a living frontend ends a request in time; we only when it is gone

log = get_logger(__name__)


class AckHeartbeat:
    """A hung engine, or one whose frames are not stored, must lose its work: then nothing is kept
    and the server gives the requests to others.
    """

    def __init__(
        self,
        held_requests: HeldRequests,
        hang_watch: HangWatch,
        token_log: TokenLog,
        pause: EnginePause,
        acks: Acknowledger,
        ack_wait_s: float,
        on_overdue: Callable[[HeldRequest], None],
    ) -> None:
        self._held_requests = held_requests
        self._hang_watch = hang_watch
        self._token_log = token_log
        self._pause = pause
        self._acks = acks
        self._ack_wait_s = ack_wait_s
        self._on_overdue = on_overdue

    async def run(self) -> None:
        """Keep until cancelled."""
        for tick in itertools.count():
            await asyncio.sleep(min(self._tick_s, self._ack_wait_s / 8))
            # A paused engine makes no steps, so that nobody else looks whether it may go on.
            if self._is_busy or tick % _IDLE_TICKS == 0:
                self._pause.update()
            if self._hang_watch.is_hung or self._token_log.is_stalled:
                log.error(
                    "nothing_is_kept",
                    step_age_s=round(self._hang_watch.step_age_s, 2),
                    log_stalled_s=round(self._token_log.stalled_s, 2),
                )
                continue
            await self._keep_all()

    @property
    def _is_busy(self) -> bool:
        return bool(self._held_requests) or self._pause.is_on

    @property
    def _tick_s(self) -> float:
        return _TICK_S if self._is_busy else _IDLE_TICK_S

    async def _keep_all(self) -> None:
        now = time.monotonic()
        for held in self._held_requests:
            if now - held.kept_at >= self._ack_wait_s / 4:
                held.kept_at = now
                await self._acks.in_progress(held.delivery)
            if held.state is HoldState.RUNNING:
                if held.is_restatement_due(now):
                    self._token_log.append(held.restate(now))
                if held.age_s > held.request.deadline_s + _DEADLINE_SLACK_S:
                    self._on_overdue(held)
        self._token_log.flush()
