"""On which side of a move a worker is wanted: where its model's requests wait, the old side first.

A worker serves one side at a time. What is queued on the old side was asked first; whoever finds
nothing to do there goes over. It comes back when the old side has work and no worker: one that held
the last requests may have died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.cluster import Cluster
from shared.errors import BrokerError, ConfigError
from shared.event_wait import beat_s
from shared.service.move import Move, MoveRecords, is_queue_closed
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

_LOOK_S = 10.0  # where it is likely to stay
_LOOK_AGAIN_S = 1.0
_LOOKS_BEFORE_RETURN = 5  # a worker there may just be about to show its first heartbeat
_ERR_CONSUMER_NOT_FOUND = 10014

log = get_logger(__name__)


async def work_place(js: JetStream, prefix: str, pool: str, *, worker_id: str = "") -> str:
    """The prefix of the streams to serve. Raises BrokerError or IncarnationMismatch."""
    move = await MoveRecords(js, prefix).find()
    return prefix if move is None else await _place_of(js, move, pool, worker_id)


async def _place_of(js: JetStream, move: Move, pool: str, worker_id: str) -> str:
    if move.is_over:
        return move.new
    old = Subjects(move.old, js_domain=js.domain)
    if not await is_queue_closed(js, old) or await _has_work(js, old, pool, worker_id):
        return move.old
    return move.new


async def _has_work(js: JetStream, subjects: Subjects, pool: str, worker_id: str) -> bool:
    """Requests that wait; or some that were taken, and no other worker that could have them."""
    num_pending = num_taken = 0
    for consumer in subjects.consumers(pool):
        try:
            info = await js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{consumer}")
        except BrokerError as exc:
            if exc.err_code != _ERR_CONSUMER_NOT_FOUND:
                raise
            continue
        num_pending += info["num_pending"]
        num_taken += info["num_ack_pending"]
    if num_pending or not num_taken:
        return bool(num_pending)
    return not await _others(js, subjects, pool, worker_id)


async def _others(js: JetStream, subjects: Subjects, pool: str, worker_id: str) -> bool:
    workers = await KvBucket(js, subjects.workers_bucket).entries(f"{pool}.")
    return any(entry.key != f"{pool}.{worker_id}" for entry in workers)


class WorkPlace:
    """Sends a worker that holds nothing to the other side when it is wanted there."""

    def __init__(
        self,
        cluster: Cluster,
        pool: str,
        worker_id: str,
        num_held: Callable[[], int],
        leave: Callable[[], None],
    ) -> None:
        self._js = cluster.js
        self._here = cluster.subjects.prefix
        self._pool = pool
        self._worker_id = worker_id
        self._num_held = num_held
        self._leave = leave
        self.is_left = False

    async def run(self) -> None:
        """Until it leaves, or is cancelled."""
        num_looks = 0
        move: Move | None = None
        while True:
            is_leaving = num_looks > 0 or (move is not None and self._here == move.old)
            await asyncio.sleep(beat_s(_LOOK_AGAIN_S if is_leaving else _LOOK_S))
            if self._num_held():
                num_looks = 0
                continue
            try:
                move = await MoveRecords(self._js, self._here).find()
                num_needed = 0 if move is None else await self._looks_needed(move)
            except (BrokerError, ConfigError) as exc:
                log.debug("move_not_seen", error=str(exc))
                continue
            num_looks = num_looks + 1 if num_needed else 0
            if num_needed and num_looks >= num_needed:
                self.is_left = True
                self._leave()
                return

    async def _looks_needed(self, move: Move) -> int:
        """How often in a row this must be seen before it leaves; 0: it is wanted here."""
        if move.is_over and self._here == move.new:
            return 0
        if await _place_of(self._js, move, self._pool, self._worker_id) == self._here:
            return 0
        if self._here == move.new:
            old = Subjects(move.old, js_domain=self._js.domain)
            return 0 if await _others(self._js, old, self._pool, "") else _LOOKS_BEFORE_RETURN
        log.info("worker_goes_over", old=move.old, new=move.new)
        return 1
