"""Writes the finished result of a request: once, and until it is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass

import nats.errors

from detok.bill_writer import bill_of
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from shared.broker.piece_chain import PieceChain
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, LimitReached, ProtocolError
from shared.protocol.bills import Bill
from shared.protocol.codec import decode, encode
from shared.protocol.notices import TenantCost
from shared.protocol.text import Done
from shared.protocol.token_ids import pack_token_ids
from shared.telemetry.log import get_logger

_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_NOT_STORED = (BrokerError, nats.errors.Error, OSError)
_MAX_REMEMBERED = 20_000

log = get_logger(__name__)


class DoneWriter:
    """DONE is a function of the log: whoever wrote it first wrote the same.

    That of a kept response is written behind its record too, and only there: a response that was
    deleted meanwhile does not come back.
    """

    def __init__(self, cluster: Cluster, stats: DetokStats) -> None:
        self._cluster = cluster
        self._stats = stats
        self._results = PieceChain(cluster.js, cluster.subjects.results_stream)
        self._responses = PieceChain(cluster.js, cluster.subjects.responses_stream)

    async def write(self, status: DecodeStatus) -> bool:
        """Return when the result is stored; whether by us.

        In its response first, but DONE does not wait for a store of responses that is full or away.
        """
        subjects, rid = self._cluster.subjects, status.rid
        payload = encode(done_of(status))
        kept_at = 0 if status.reply is None else status.reply.kept_at
        is_kept = not kept_at or await self._keep_at_once(rid, payload, kept_at)
        is_ours = await self._store(self._results, subjects.done(rid), rid, payload, 0)
        if is_ours:
            self._stats.done_written += 1
            await self._publish_cost(status)
        if not is_kept:
            await self._keep(rid, payload, kept_at)
        return is_ours

    async def keep_done(self, rid: str, payload: bytes) -> Bill | None:
        """Return when the response of a stored DONE has that result; the bill that it bears.

        Who wrote DONE may have died while it waited for room in the store of responses.
        """
        try:
            done = decode(Done, payload)
        except ProtocolError as exc:
            log.error("done_unreadable", rid=rid, error=str(exc))
            return None
        if done.reply is not None and done.reply.kept_at:
            await self._keep(rid, payload, done.reply.kept_at)
        return done.bill

    async def _publish_cost(self, status: DecodeStatus) -> None:
        """Once for each request: who stores the result publishes what it has cost."""
        owner = "" if status.reply is None else status.reply.owner
        finish = status.fold.finish
        num_tokens = len(status.fold.tokens) + (finish.num_beam_tokens if finish else 0)
        if finish is not None and finish.run is not None:
            num_tokens -= finish.run.num_given  # they came in, as a prompt does
        if owner and num_tokens:
            cost = encode(TenantCost(owner, num_tokens))
            with contextlib.suppress(nats.errors.Error):
                await self._cluster.nc.publish(self._cluster.subjects.costs, cost)

    async def _keep_at_once(self, rid: str, payload: bytes, kept_at: int) -> bool:
        """False when the store of responses does not take it for the moment."""
        subject = self._cluster.subjects.response(rid)
        try:
            await self._responses.write(subject, payload, kept_at)
        except CasConflict:
            return True
        except _NOT_STORED as exc:
            log.warning("response_not_kept_yet", rid=rid, error=str(exc))
            return False
        return True

    async def _keep(self, rid: str, payload: bytes, kept_at: int) -> None:
        """Until it is stored, by us or by another, or the response was deleted."""
        subject = self._cluster.subjects.response(rid)
        await self._store(self._responses, subject, rid, payload, kept_at)

    async def _store(
        self, chain: PieceChain, subject: str, rid: str, payload: bytes, prev: int
    ) -> bool:
        """Until it is stored. False: another was faster, or its response was deleted."""
        retry_s = _RETRY_S
        while True:
            try:
                await chain.write(subject, payload, prev)
            except CasConflict:
                return False
            except _NOT_STORED as exc:
                # Servers may say that a stream is full before they say that a record is there.
                if isinstance(exc, LimitReached) and await _is_written(chain, subject, prev):
                    return False
                log.warning("done_not_stored", rid=rid, subject=subject, error=str(exc))
            else:
                return True
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)


async def _is_written(chain: PieceChain, subject: str, prev: int) -> bool:
    try:
        return await chain.read(subject, prev + 1) is not None
    except BrokerError:
        return False


def done_of(status: DecodeStatus) -> Done:
    """The result of a finished, decoded request."""
    assert status.fold.finish is not None
    return Done(
        rid=status.rid,
        token_ids=pack_token_ids(status.fold.tokens),
        text=status.text,
        finish=status.fold.finish,
        reply=status.reply,
        logprobs=bytes(status.fold.logprobs),
        prompt_logprobs=status.fold.prompt_logprobs,
        bill=status.bill or bill_of(status),
    )


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A request whose result is stored, as its late frames are judged."""

    epoch: int
    pool: str  # "" when nothing is known but that it is over
    was_ended: bool  # by an `end`: its writer may not know

    def is_stale(self, epoch: int) -> bool:
        """Whether an entry of this epoch shows a worker that runs in vain."""
        return self.pool != "" and (epoch != self.epoch or self.was_ended)


class SettledRequests:
    """The most recent of those whose results are stored: their late frames still arrive."""

    def __init__(self) -> None:
        self._by_rid: OrderedDict[str, SettledRequest] = OrderedDict()

    def __contains__(self, rid: str) -> bool:
        return rid in self._by_rid

    def get(self, rid: str) -> SettledRequest | None:
        return self._by_rid.get(rid)

    def add(self, rid: str, settled: SettledRequest) -> None:
        self._by_rid[rid] = settled
        if len(self._by_rid) > _MAX_REMEMBERED:
            self._by_rid.popitem(last=False)

    def forget(self, rid: str) -> None:
        self._by_rid.pop(rid, None)
