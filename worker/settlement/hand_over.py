"""Hands requests back to the queue, to go on elsewhere at once."""

from __future__ import annotations

import asyncio

from shared.telemetry.log import get_logger
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.runs.token_log import TokenLog
from worker.settlement.settler import Settler

log = get_logger(__name__)


class HandOver:
    """Releases requests of one worker incarnation (docs/protocol.md, "W, hand over")."""

    def __init__(self, held_requests: HeldRequests, token_log: TokenLog, settler: Settler) -> None:
        self._held_requests = held_requests
        self._token_log = token_log
        self._settler = settler

    async def release_one(self, held: HeldRequest, timeout_s: float) -> bool:
        """Stop its run here, and let the log say so, behind what it has made: whether it does.

        The queue is told nothing: another worker is waiting for the request.
        """
        if held.state is not HoldState.RUNNING:
            return False
        if held.trace is not None:
            held.trace.why_left = "released"
        self._held_requests.drop(held)
        await self._token_log.wait_sent(held.rid, timeout_s)
        return await self._settler.record_release(held, has_crashed=False)

    async def release_all(
        self, timeout_s: float, *, crashed: bool, spare: HeldRequest | None = None
    ) -> None:
        """Stop every run, let the log have what was made, for `timeout_s` at most, then release.

        What is still being claimed is released when the claim comes back. `spare` stays.
        """
        all_but = [held for held in self._held_requests if held is not spare]
        running = [held for held in all_but if held.state is HoldState.RUNNING]
        for held in all_but:
            if held.state is HoldState.CLAIMING:
                held.revoke(has_crashed=crashed)
                self._held_requests.abort(held)
        for held in running:
            self._held_requests.abort(held)
        if not await self._token_log.wait_flushed(timeout_s):
            log.warning("released_before_flushed", num_requests=len(running))
        for held in running:
            if held.trace is not None:
                held.trace.why_left = "crashed" if crashed else "released"
            self._held_requests.drop(held)
        await asyncio.gather(
            *(self._settler.release(held, has_crashed=crashed) for held in running)
        )
