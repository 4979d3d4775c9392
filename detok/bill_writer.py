"""The bills of a partition: stored once each, in the order of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, ProtocolError
from shared.protocol.bills import BILL_LEVEL, Bill, BillBatch, decode_bills, encode_bills
from shared.protocol.reply import Payer
from shared.protocol.request import PROTOCOL_VERSION
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.telemetry.log import get_logger

_INTERVAL_S = 0.5  # what ends meanwhile shares a message
_LOOK_S = 30.0  # whether there is a stream of bills
_MAX_BILLS = 200  # in a message: with all their metadata less than half a mebibyte

log = get_logger(__name__)


class BillWriter:
    """A message holds bills behind those of the message before it, and is stored by
    compare-and-set: the last one says which ends in the log have theirs.

    Until it is stored, a bill holds the floor of its partition: whoever owns that next makes it
    anew. Without a stream of bills, or below their feature level, there are none.
    """

    def __init__(self, cluster: Cluster, partition: int, stats: DetokStats) -> None:
        self._cluster = cluster
        self._partition = partition
        self._stats = stats
        self._stream = cluster.subjects.bills_stream
        self._subject = cluster.subjects.bills(partition)
        self._pending: dict[tuple[int, str], tuple[Bill, int]] = {}  # with where it can be rebuilt
        self._is_kept: bool | None = None  # None: it is not known yet whether there is a stream
        self._last_seq = 0  # of our subject
        self._last_key = (0, "")  # of the last bill there
        self._num_stored = 0

    @property
    def floor(self) -> int | None:
        """The lowest sequence from which all that is not stored can be made again; None: it is."""
        return min((seq for _, seq in self._pending.values()), default=None)

    def add(self, bill: Bill, rebuild_seq: int) -> None:
        """Adds the bill of a request that is over; nothing happens where it has its bill."""
        if self._is_kept is False or self._cluster.level.in_force < BILL_LEVEL:
            return
        if bill.place and bill.key_in_log > self._last_key:
            self._pending[bill.key_in_log] = bill, rebuild_seq

    async def run(self, settled_to: Callable[[], int | None]) -> None:
        """Until cancelled. `settled_to()`: up to there in the log no end is without its bill; None
        for who may not write.
        """
        looked_at = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - looked_at >= _LOOK_S:
                    await self._look()
                    looked_at = loop.time()
                if self._is_kept:
                    await self._store(settled_to())
            except BrokerError as exc:
                looked_at = float("-inf")
                log.warning("bills_not_stored", partition=self._partition, error=str(exc))
            await asyncio.sleep(_LOOK_S if self._is_kept is False else _INTERVAL_S)

    async def _look(self) -> None:
        """Whether bills are kept, and which. Raises BrokerError."""
        was_kept, self._is_kept = self._is_kept, await self._is_stream_there()
        if not self._is_kept:
            self._pending.clear()
        elif not was_kept:
            await self._read_last()

    async def _is_stream_there(self) -> bool:
        try:
            await self._cluster.js.api(f"STREAM.INFO.{self._stream}")
        except BrokerError as exc:
            if exc.err_code != ERR_STREAM_NOT_FOUND:
                raise
            return False
        return True

    async def _read_last(self) -> None:
        """What is stored, maybe by another owner, needs nothing more. Raises BrokerError."""
        last = await self._cluster.js.get_last(self._stream, self._subject)
        self._last_seq = 0 if last is None else last.seq
        if last is None:
            return
        try:
            batch = decode_bills(last.data)
        except ProtocolError as exc:
            raise BrokerError(f"the last message of {self._subject}: {exc}") from exc
        self._last_key = max(self._last_key, batch.bills[-1].key_in_log)
        self._num_stored = batch.first + len(batch.bills)
        self._pending = {
            key: pending for key, pending in self._pending.items() if key > self._last_key
        }

    async def _store(self, settled_to: int | None) -> None:
        """Raises BrokerError."""
        while settled_to is not None:
            keys = sorted(key for key in self._pending if key[0] <= settled_to)[:_MAX_BILLS]
            if not keys:
                return
            bills = [self._pending[key][0] for key in keys]
            batch = BillBatch(PROTOCOL_VERSION, self._partition, self._num_stored, bills)
            try:
                ack = await self._cluster.js.publish(
                    self._subject, encode_bills(batch), expected_last=self._last_seq
                )
            except CasConflict:  # another owner, or our own whose answer was lost
                await self._read_last()
                continue
            self._last_seq, self._last_key = ack.seq, keys[-1]
            self._num_stored += len(bills)
            self._stats.bills += len(bills)
            self._stats.billed_engine_seconds += sum(bill.engine_s for bill in bills)
            for key in keys:
                del self._pending[key]


def bill_of(status: DecodeStatus) -> Bill:
    """The bill of a request whose end is in the log."""
    fold, claim, reply = status.fold, status.claim, status.reply
    finish = fold.finish
    assert finish is not None, "it is not over"
    cost = fold.cost
    num_given = min(len(fold.tokens), 0 if claim is None else claim.num_given)
    payer = Payer() if reply is None or reply.payer is None else reply.payer
    return Bill(
        rid=status.rid,
        group=status.rid if reply is None else reply.group_id,
        ended_at=round(status.ended_at, 6),
        reason=finish.reason,
        model="" if reply is None else reply.model,
        job_class="" if reply is None else reply.job_class,
        owner="" if reply is None else reply.owner,
        tenant=payer.tenant,
        key=payer.key,
        metadata=payer.metadata,
        num_prompt_tokens=0 if reply is None else reply.num_prompt_tokens,
        num_cached_tokens=finish.num_cached_tokens,
        num_computed_tokens=cost.num_computed,
        num_output_tokens=len(fold.tokens) - num_given + finish.num_beam_tokens,
        num_drafted_tokens=cost.num_drafted,
        num_repeated_tokens=cost.num_repeated,
        engine_s=cost.engine_s,
        repeated_s=cost.repeated_s,
        unmeasured_s=round(cost.unmeasured_s + status.unreported_s, 6),
        queue_s=cost.queue_s,
        held_s=cost.held_s,
        worker="" if claim is None else claim.worker,
        device="" if claim is None else claim.device,
        num_handovers=cost.num_handovers,
        place=status.place,
    )
