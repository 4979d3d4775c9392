"""Keeps what a worker holds: restarts the server's ack wait, restates, watches deadlines."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable

from shared.event_wait import beat_s
from shared.telemetry.log import get_logger
from worker.capacity.hang_watch import HangWatch
from worker.held.delivery import Acknowledger
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.runs.engine_pause import EnginePause
from worker.runs.token_log import TokenLog

_TICK_S = 0.5
_IDLE_TICK_S = 1.0
_IDLE_TICKS = 30  # from one look for room to the next, while nothing is held
_AT_ONCE = 256  # requests, in one turn of the loop
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
        self._round: deque[HeldRequest] = deque()  # not kept yet in this round
        self._num_a_tick = 0

    async def run(self) -> None:
        """Keep until cancelled."""
        for tick in itertools.count():
            tick_s = beat_s(min(self._tick_s, self._ack_wait_s / 8))
            await asyncio.sleep(tick_s)
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
            await self.keep_some(tick_s)

    @property
    def _is_busy(self) -> bool:
        return bool(self._held_requests) or self._pause.is_on

    @property
    def _tick_s(self) -> float:
        return _TICK_S if self._is_busy else _IDLE_TICK_S

    async def keep_some(self, tick_s: float) -> None:
        """As many as it takes to look at each eight times in `ack_wait`: with thousands of requests
        no tick is long, and their acknowledgements are spread over many.
        """
        if not self._round:
            self._round = deque(self._held_requests)
            self._num_a_tick = math.ceil(len(self._round) * tick_s / (self._ack_wait_s / 8))
        now = time.monotonic()
        for idx in range(min(self._num_a_tick, len(self._round))):
            await self._keep(self._round.popleft(), now)
            if idx % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        self._token_log.flush()

    async def _keep(self, held: HeldRequest, now: float) -> None:
        if held.state is HoldState.DROPPED:
            return
        if now - held.kept_at >= self._ack_wait_s / 4:
            held.kept_at = now
            await self._acks.in_progress(held.delivery)
        if held.state is HoldState.RUNNING:
            if held.is_restatement_due(now):
                self._token_log.append(held.restate(now))
            if held.age_s > held.request.deadline_s + _DEADLINE_SLACK_S:
                self._on_overdue(held)
