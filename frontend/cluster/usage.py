"""What was used, by day, tenant, key and model: the sums of the bills that are kept."""

from __future__ import annotations

import asyncio
import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import msgspec

from frontend.cluster.view import Viewer
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    InvalidRequest,
    NotFound,
    ProtocolError,
    ServiceUnavailable,
)
from shared.protocol.bills import Bill, decode_bills
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.telemetry.log import get_logger

GROUPS = ("day", "tenant", "key", "model")
_READ_S = 5.0  # for which a caller waits; then the reading goes on without it

log = get_logger(__name__)


class UsageRow(WireStruct, frozen=True, kw_only=True):
    """Sums of bills. Names by which was not grouped are null."""

    day: str | None  # UTC, by the ends of the requests
    tenant: str | None
    key: str | None  # the first hex digits of its SHA-256
    model: str | None
    num_requests: Count
    num_prompt_tokens: Count
    num_cached_tokens: Count
    num_computed_tokens: Count
    num_output_tokens: Count
    num_drafted_tokens: Count
    num_repeated_tokens: Count
    engine_s: Amount
    repeated_s: Amount
    unmeasured_s: Amount
    queue_s: Amount
    num_handovers: Count


class UsageReport(WireStruct, frozen=True, kw_only=True):
    """What was used, as far back as bills are kept."""

    object: str
    data: list[UsageRow]
    num_lost: Count  # bills that were removed for room before this frontend read them


class _Group(NamedTuple):
    day: str
    owner: str
    tenant: str
    key: str
    model: str


@dataclass(slots=True)
class _Sums:
    """Its fields are those of a row, and but for the first those of a bill."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_drafted_tokens: int = 0
    num_repeated_tokens: int = 0
    engine_s: float = 0.0
    repeated_s: float = 0.0
    unmeasured_s: float = 0.0
    queue_s: float = 0.0
    num_handovers: int = 0

    def add_bill(self, bill: Bill) -> None:
        self.num_requests += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(bill, name))

    def add(self, other: _Sums) -> None:
        for name in _ALL:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def facts(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _ALL}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}


_ALL = tuple(field.name for field in fields(_Sums))
_SUMMED = _ALL[1:]


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which bills are summed, and by what."""

    since: datetime.date | None = None
    until: datetime.date | None = None  # this day, too
    model: str | None = None
    by: tuple[str, ...] = GROUPS

    @classmethod
    def read(cls, query: Mapping[str, str]) -> UsageQuery:
        """Raises InvalidRequest."""
        for name in query:
            if name not in ("since", "until", "model", "by"):
                raise InvalidRequest(
                    f"{name[:40]!r} is no field of a query: there are since, until, model and by",
                    param=name[:40],
                )
        by = tuple(query["by"].split(",")) if "by" in query else GROUPS
        for name in by:
            if name not in GROUPS:
                raise InvalidRequest(
                    f"'by' names {name[:40]!r}, must list some of {', '.join(GROUPS)}", param="by"
                )
        return cls(_day(query, "since"), _day(query, "until"), query.get("model"), by)

    def takes(self, group: _Group) -> bool:
        since, until = self.since, self.until
        return (
            (since is None or group.day >= since.isoformat())
            and (until is None or group.day <= until.isoformat())
            and (self.model is None or group.model == self.model)
        )


def _day(query: Mapping[str, str], name: str) -> datetime.date | None:
    if name not in query:
        return None
    try:
        return datetime.date.fromisoformat(query[name])
    except ValueError as exc:
        raise InvalidRequest(
            f"'{name}' is {query[name][:40]!r}, must be a day like 2026-11-28", param=name
        ) from exc


class UsageBook:
    """Reads the stream of bills up to its end whenever it is asked; what was read stays summed.

    A frontend that nobody asks reads nothing.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._stream = cluster.subjects.bills_stream
        self._subjects = cluster.subjects.bills("*")
        self._sums: dict[_Group, _Sums] = defaultdict(_Sums)
        self._next_seq = 1
        self._next_numbers: dict[int, int] = {}  # by partition
        self._num_lost = 0
        self._reading: asyncio.Task[None] | None = None

    async def usage(self, query: UsageQuery, viewer: Viewer) -> UsageReport:
        """Of a tenant, or for operators of all. Raises NotFound or ServiceUnavailable."""
        await self._catch_up()
        found: dict[tuple[str | None, ...], _Sums] = defaultdict(_Sums)
        for group, sums in self._sums.items():
            if query.takes(group) and (viewer.is_operator or group.owner == viewer.owner):
                names = tuple(getattr(group, n) if n in query.by else None for n in GROUPS)
                found[names].add(sums)
        rows = [
            msgspec.convert(dict(zip(GROUPS, names, strict=True)) | sums.facts(), UsageRow)
            for names, sums in sorted(found.items(), key=lambda item: [n or "" for n in item[0]])
        ]
        return UsageReport(object="list", data=rows, num_lost=self._num_lost)

    async def _catch_up(self) -> None:
        """One reading serves all who ask meanwhile."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(_READ_S):
                await asyncio.shield(self._reading)
        except TimeoutError as exc:
            raise ServiceUnavailable(
                f"The bills are being read, up to message {self._next_seq}: ask again."
            ) from exc
        except BrokerError as exc:
            if exc.err_code == ERR_STREAM_NOT_FOUND:
                raise NotFound(
                    "No bills are kept here: give the roles --bills-ttl-s, or `jetflock setup`."
                ) from exc
            raise ServiceUnavailable("The bills cannot be read now.") from exc

    async def _read(self) -> None:
        """Raises BrokerError."""
        info = await self._js.api(f"STREAM.INFO.{self._stream}")
        self._forget_before(str(info["state"]["first_ts"])[:10])
        scan = self._js.direct_scan(self._stream, self._subjects, first_seq=self._next_seq)
        async for message in scan:
            try:
                batch = decode_bills(message.data)
            except ProtocolError as exc:
                log.error("bills_unreadable", seq=message.seq, error=str(exc))
            else:
                num_missing = batch.first - self._next_numbers.get(batch.partition, batch.first)
                self._num_lost += max(0, num_missing)
                self._next_numbers[batch.partition] = batch.first + len(batch.bills)
                self._add(batch.bills)
            self._next_seq = message.seq + 1

    def _add(self, bills: Iterable[Bill]) -> None:
        for bill in bills:
            moment = datetime.datetime.fromtimestamp(bill.ended_at, datetime.UTC)
            day = moment.date().isoformat()
            group = _Group(day, bill.owner, bill.tenant, bill.key, bill.model)
            self._sums[group].add_bill(bill)

    def _forget_before(self, day: str) -> None:
        """Bills of earlier days are gone."""
        for group in [group for group in self._sums if group.day < day]:
            del self._sums[group]
