"""What was used, by day, tenant, key and model: the sums of the bills that are kept."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.cluster.view import Viewer
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, InvalidRequest, NotFound, ServiceUnavailable
from shared.protocol.bills import UsageSum
from shared.service.usage_sums import UsageGroup, UsageSums
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.telemetry.log import get_logger

GROUPS = ("day", "tenant", "key", "model")
_MAX_ROWS = 10_000
_READ_S = 5.0  # for which a caller waits; then the reading goes on without it
_FRESH_S = 1.0
_STORE_S = 60.0

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
        by: tuple[str, ...] = GROUPS
        if "by" in query:  # an empty one asks for one sum
            by = tuple(query["by"].split(",")) if query["by"] else ()
        for name in by:
            if name not in GROUPS:
                raise InvalidRequest(
                    f"'by' names {name[:40]!r}, must list some of {', '.join(GROUPS)}", param="by"
                )
        return cls(_day(query, "since"), _day(query, "until"), query.get("model"), by)

    def takes(self, group: UsageGroup) -> bool:
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
    """Follows the stream of bills, so that a question finds most of them summed, and keeps the sums
    for whoever begins next.

    Who asks again and again reads what was read within the last second.
    """

    def __init__(self, cluster: Cluster, older: UsageBook | None = None) -> None:
        """`older`: of the side that the service has moved away from."""
        self._sums = UsageSums(cluster.js, cluster.subjects)
        self._prefix = cluster.subjects.prefix
        self._older = older
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._read_soon()
                await self._sums.store()
            except CasConflict:
                log.debug("usage_stored_by_another")
            except BrokerError as exc:
                if exc.err_code != ERR_STREAM_NOT_FOUND:
                    log.warning("usage_not_stored", error=str(exc))
            await asyncio.sleep(_STORE_S * random.uniform(0.5, 1.5))

    def forget_older(self) -> None:
        """Its streams are gone, and what it had summed is here."""
        self._older = None
        self._read_at = float("-inf")

    async def usage(self, query: UsageQuery, viewer: Viewer) -> UsageReport:
        """The usage of a tenant, or for operators of all.

        Raises InvalidRequest for what would be too long, NotFound or ServiceUnavailable.
        """
        found: dict[tuple[str | None, ...], UsageSum] = defaultdict(UsageSum)
        num_lost = await self.add_to(found, query, viewer)
        if len(found) > _MAX_ROWS:
            raise InvalidRequest(
                f"'by' makes {len(found)} rows, and an answer has {_MAX_ROWS} at most: sum by "
                "less, or ask for fewer days ('since', 'until') or one 'model'",
                param="by",
            )
        rows = [
            msgspec.convert(dict(zip(GROUPS, names, strict=True)) | _facts(row), UsageRow)
            for names, row in sorted(found.items(), key=lambda item: [n or "" for n in item[0]])
        ]
        return UsageReport(object="list", data=rows, num_lost=num_lost)

    async def add_to(
        self, found: dict[tuple[str | None, ...], UsageSum], query: UsageQuery, viewer: Viewer
    ) -> int:
        """How many bills were lost. Raises NotFound or ServiceUnavailable."""
        num_lost, older = 0, self._older
        if older is not None:
            with contextlib.suppress(NotFound):  # only the newer side keeps bills
                num_lost = await older.add_to(found, query, viewer)
        await self._catch_up()
        owner = None if viewer.is_operator else viewer.owner
        for part in self._sums.parts(owner, "" if older is None else older._prefix):
            for group, row in part:
                if query.takes(group):
                    names = tuple(getattr(group, n) if n in query.by else None for n in GROUPS)
                    found[names].add(row, row.num_requests)
            await asyncio.sleep(0)  # others have their turn
        return num_lost + self._sums.num_lost

    async def _catch_up(self) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                await self._read_soon()
        except TimeoutError as exc:
            raise ServiceUnavailable(
                f"The bills are being read, up to message {self._sums.seq}: ask again."
            ) from exc
        except BrokerError as exc:
            if exc.err_code == ERR_STREAM_NOT_FOUND:
                raise NotFound(
                    "No bills are kept here: give the roles --bills-ttl-s, or `jetflock setup`."
                ) from exc
            raise ServiceUnavailable("The bills cannot be read now.") from exc

    async def _read_soon(self) -> None:
        """One reading serves all who ask meanwhile, and within a second. Raises BrokerError."""
        if self._reading is None or self._reading.done():
            if time.monotonic() - self._read_at < _FRESH_S:
                return
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        await self._sums.catch_up()
        self._read_at = time.monotonic()


def _facts(row: UsageSum) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}
