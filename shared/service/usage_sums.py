"""What was used, by day and payer: sums of the bills, folded as they come and kept in KV."""

from __future__ import annotations

import asyncio
import datetime
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from shared.broker.jetstream import JetStream, StoredMessage
from shared.broker.kv_bucket import KvBucket
from shared.errors import BrokerError, CasConflict, ProtocolError
from shared.protocol.bills import Bill, UsageHead, UsagePart, UsageSum, decode_bills
from shared.protocol.codec import decode, encode
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

_HEAD = "head"
_NUM_SHARES = 64  # of the tenants: a part is small enough for a message, and a question reads few
_MAX_ROWS = 5000  # of a part in a message
_MAX_READ = 64  # messages at a time: of 200 bills, 7 MB
_DAY_S = 86_400
_EPOCH = datetime.date(1970, 1, 1)
_NS = 1_000_000_000

T = TypeVar("T")

log = get_logger(__name__)


class UsageGroup(NamedTuple):
    """Who asked what, on a day."""

    day: str  # UTC
    owner: str
    tenant: str
    key: str
    model: str


class _Part:
    """The sums of one key in the bucket: a day and a share of the tenants."""

    __slots__ = ("changed_seq", "revision", "seq", "sums")

    def __init__(self, seq: int = 0, revision: int = 0) -> None:
        self.seq = seq  # what it was stored with: bills up to there are in it
        self.revision = revision
        self.changed_seq = 0  # of the last bill that was added
        self.sums: dict[tuple[str, str, str, str], UsageSum] = defaultdict(UsageSum)

    def add_rows(self, record: UsagePart) -> None:
        for *payer, row in record.rows:
            self.sums[tuple(payer)] = row  # type: ignore[index]

    def record(self, stream: str, seq: int) -> UsagePart:
        return UsagePart(stream, seq, [(*payer, row) for payer, row in self.sums.items()])


class UsageSums:
    """A function of the stream of bills up to `seq`, whoever computes it from wherever it was kept.

    Parts are stored first and the head behind them, each by compare-and-set; each says how far it
    is, so that one who is killed in between has counted nothing twice. Sums outlive bills that make
    room, and are as old as those may become. Keys of a third token come from a side that the
    service has left, and stay as they are.
    """

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._stream = subjects.bills_stream
        self._bills = subjects.bills("*")
        self._prefix = subjects.prefix
        self._bucket_name = subjects.usage_bucket
        self._bucket = KvBucket(js, self._bucket_name)
        self._made_at = ""  # the stream of bills that is summed
        self._head = UsageHead()
        self._next_numbers: dict[str, int] = {}
        self._parts: dict[str, _Part] = {}
        self._left: dict[str, _Part] = {}  # of sides that were left
        self.seq = 0
        self.num_lost = 0

    async def catch_up(self) -> None:
        """Catches up with all bills there are. Raises BrokerError, also where none are kept."""
        info = await self._js.api(f"STREAM.INFO.{self._stream}")
        if info["created"] != self._made_at:
            await self._load(str(info["created"]))
        scan = self._js.direct_scan(
            self._stream, self._bills, batch=_MAX_READ, first_seq=self.seq + 1
        )
        async for message in scan:
            self._fold(message)
            await asyncio.sleep(0)  # others have their turn: it holds up to 200 bills
        self._forget_old(info)
        self._left = await self._read_left()

    def parts(self, owner: str | None, besides: str) -> Iterator[Sequence[tuple[UsageGroup, Any]]]:
        """Sums in portions, those of one owner alone or, with None, of all; without those of the
        side that was left with this prefix.
        """
        share = None if owner is None else _share(owner)
        for key, part in [*self._parts.items(), *self._left.items()]:
            day, number, *left = key.split(".")
            if (share is None or number == share) and left != [besides]:
                yield [
                    (UsageGroup(day, *payer), row)
                    for payer, row in part.sums.items()
                    if owner in (None, payer[0])
                ]

    async def store(self) -> None:
        """Stores them, so that whoever sums next begins here; nothing where another has come as
        far. Raises BrokerError.
        """
        entry = await self._bucket.get(_HEAD)
        stored = UsageHead() if entry is None else decode(UsageHead, entry.value)
        since = stored.seq if stored.stream == self._made_at else 0
        head = UsageHead(self._made_at, self.seq, dict(self._next_numbers), self.num_lost)
        if since >= head.seq:
            return
        for key, part in list(self._parts.items()):
            if part.changed_seq > since:
                await self._store_part(key, part)
        await self._bucket.put_if(_HEAD, encode(head), 0 if entry is None else entry.revision)

    async def leave_to(self, bucket: KvBucket) -> None:
        """They go along to another side, which counts them beside its own. Raises BrokerError."""
        for key, part in self._parts.items():
            await bucket.put(f"{key}.{self._prefix}", encode(part.record("", 0)))
        for key, part in self._left.items():
            await bucket.put(key, encode(part.record("", 0)))

    async def _load(self, made_at: str) -> None:
        """The head first: what is read behind it is at least as far. Raises BrokerError."""
        entry = await self._bucket.get(_HEAD)
        head = UsageHead() if entry is None else _read(UsageHead, _HEAD, entry.value)
        if head.stream != made_at:
            head = UsageHead(made_at)
        parts: dict[str, _Part] = {}
        for message in await self._scan("*.*"):
            key = message.subject.split(".", 2)[2]
            record = _read(UsagePart, key, message.data)
            part = parts[key] = _Part(revision=message.seq)
            if record.stream == made_at:
                part.seq = record.seq
                part.add_rows(record)
        self._made_at, self._parts, self.seq = made_at, parts, head.seq
        self._next_numbers, self.num_lost = dict(head.next_numbers), head.num_lost

    async def _read_left(self) -> dict[str, _Part]:
        found: dict[str, _Part] = {}
        for message in await self._scan("*.*.*"):
            key = message.subject.split(".", 2)[2]
            found[key] = _Part()
            found[key].add_rows(_read(UsagePart, key, message.data))
        return found

    async def _scan(self, keys: str) -> list[StoredMessage]:
        """Scans the bucket. Raises BrokerError, also where a replica lags behind."""
        subject = f"$KV.{self._bucket_name}.{keys}"
        return [each async for each in self._js.proven_scan(f"KV_{self._bucket_name}", subject)]

    def _fold(self, message: StoredMessage) -> None:
        self.seq = message.seq
        try:
            batch = decode_bills(message.data)
        except ProtocolError as exc:
            log.error("bills_unreadable", seq=message.seq, error=str(exc))
            return
        partition = str(batch.partition)
        self.num_lost += max(0, batch.first - self._next_numbers.get(partition, batch.first))
        self._next_numbers[partition] = batch.first + len(batch.bills)
        for bill in batch.bills:
            self._add(bill, message.seq)

    def _add(self, bill: Bill, seq: int) -> None:
        key = f"{_day(bill.ended_at)}.{_share(bill.owner)}"
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part()
        if seq > part.seq:
            part.changed_seq = seq
            part.sums[bill.owner, bill.tenant, bill.key, bill.model].add(bill)

    def _forget_old(self, info: dict[str, Any]) -> None:
        """Days of which bills, too, are gone by their age."""
        if max_age_ns := int(info["config"]["max_age"]):
            now = datetime.datetime.fromisoformat(info["ts"]).timestamp()
            first_day = _day(now - max_age_ns / _NS)
            for key in [key for key in self._parts if key < first_day]:
                del self._parts[key]

    async def _store_part(self, key: str, part: _Part) -> None:
        """Unless another's is as far. Raises CasConflict when others are as eager; BrokerError."""
        if len(part.sums) > _MAX_ROWS:
            raise BrokerError(f"{len(part.sums)} sums of {key} are too many for a message")
        for _ in range(2):
            record = part.record(self._made_at, self.seq)
            try:
                part.revision = await self._bucket.put_if(key, encode(record), part.revision)
            except CasConflict:
                entry = await self._bucket.get(key)
                part.revision = 0 if entry is None else entry.revision
                if entry is not None:
                    found = _read(UsagePart, key, entry.value)
                    if found.stream == self._made_at and found.seq >= record.seq:
                        return
            else:
                return
        raise CasConflict(f"others store {key} all the while")


def _day(unix_s: float) -> str:
    return _named_day(int(unix_s // _DAY_S))


@lru_cache(maxsize=64)
def _named_day(num_days: int) -> str:
    return (_EPOCH + datetime.timedelta(days=num_days)).isoformat()


def _share(owner: str) -> str:
    return str(zlib.crc32(owner.encode()) % _NUM_SHARES)


def _read(message_type: type[T], key: str, data: bytes) -> T:
    """Raises BrokerError."""
    try:
        return decode(message_type, data)
    except ProtocolError as exc:
        raise BrokerError(f"the sums under {key}: {exc}") from exc
