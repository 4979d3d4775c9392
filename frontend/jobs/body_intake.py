"""How the bodies of requests are read: in their turn, and not for nothing without end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, NamedTuple

from frontend.fields.request_body import RawBody
from frontend.jobs.job import Caller
from frontend.tenants.rate_bucket import RateBucket
from frontend.tenants.tenant import Tenant
from frontend.tenants.tenant_line import TenantLine
from shared.errors import Overloaded, RateLimited, RequestError

_MS_PER_MINUTE = 2000  # of the event loop; two seconds at once, a thirtieth of it for ever
_SHORT_MS = 1.0
_REFUSAL_MS = 0.3  # what each costs besides its body
_FULL_RETRY_S = 5
_NO_FAULT = (408, 409, 429, 499)  # of what the body says


class _Waiting(NamedTuple):
    done: asyncio.Future[None]


class BodyLine:
    """One body at a time, tenants in turn; behind each, the loop is as long for others.

    Were all read as they come, each turn of the loop would read one of every connection, and a
    stream needs a dozen turns to its first token.
    """

    def __init__(self) -> None:
        self._line: TenantLine[_Waiting] = TenantLine()
        self._is_free = True
        self._began_at = 0.0

    async def turn(self, tenant_id: str) -> None:
        """Returns when the caller may read its body; what it does before it waits is its turn."""
        loop = asyncio.get_running_loop()
        if self._is_free:
            self._is_free = False
        else:
            await self._wait(tenant_id)
        self._began_at = loop.time()
        loop.call_soon(self._rest)

    async def _wait(self, tenant_id: str) -> None:
        called = asyncio.get_running_loop().create_future()
        self._line.add(tenant_id, _Waiting(called))
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called, and left in the same moment
                self._call_next()
            raise

    def _rest(self) -> None:
        """The reader waits for something now, or has ended."""
        loop = asyncio.get_running_loop()
        loop.call_later(loop.time() - self._began_at, self._call_next)

    def _call_next(self) -> None:
        waiting = self._line.next()
        if waiting is None:
            self._is_free = True
        else:
            waiting.done.set_result(None)


class RefusedWork:
    """Milliseconds of this frontend's event loop, by tenant's id.

    Without keys nobody is charged: whoever sent what was refused, all would be held to blame.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, RateBucket] = {}

    def check(self, tenant: Tenant, now: float) -> None:
        """Raises RateLimited for a tenant whose debt is not paid off; `now` in seconds."""
        bucket = self._buckets.get(tenant.id)
        if bucket is None:
            return
        if (wait_s := bucket.wait_s(1, now)) > 0:
            raise RateLimited(
                "Too many of your requests were refused: the time that they took is spent. "
                "Their errors say what was wrong.",
                wait_s,
                kind="requests",
                headers={},
            )
        if bucket.level(now) >= bucket.per_minute:
            del self._buckets[tenant.id]

    def charge(self, tenant: Tenant, num_ms: float, now: float) -> None:
        """A request was refused that took so long. No debt takes longer than a minute."""
        if not tenant.id:
            return
        bucket = self._buckets.setdefault(tenant.id, RateBucket(_MS_PER_MINUTE, now))
        bucket.take(min(num_ms, bucket.level(now) + bucket.per_minute), now)


class HeldBytes:
    """Bytes of the bodies whose requests are not accepted yet, by tenant's id."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._of_tenant: Counter[str] = Counter()

    def hold(self, tenant: Tenant, num_bytes: int) -> None:
        """Until they are let go. One that is alone is always taken; of several a tenant with a key
        has half at most.

        Raises Overloaded.
        """
        num_theirs = self._of_tenant[tenant.id] if tenant.id else 0
        if self._num_bytes and num_bytes + num_theirs > self._max_bytes - self._num_bytes:
            raise Overloaded(
                f"The bodies of requests that are not accepted yet take {self._num_bytes} bytes, "
                f"of {self._max_bytes} that they may take; try again later.",
                _FULL_RETRY_S,
            )
        self._add(tenant, num_bytes)

    def let_go(self, tenant: Tenant, num_bytes: int) -> None:
        self._add(tenant, -num_bytes)

    def _add(self, tenant: Tenant, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._of_tenant[tenant.id] += num_bytes
        if not self._of_tenant[tenant.id]:
            del self._of_tenant[tenant.id]


class BodyIntake:
    """Reads the bodies of one process, whose event loop and memory they all share."""

    def __init__(self, max_bytes: int) -> None:
        self._line = BodyLine()
        self._refused = RefusedWork()
        self._bytes = HeldBytes(max_bytes)

    def check(self, caller: Caller) -> None:
        """Spares the work for a body that is not read anyway. Raises RateLimited."""
        self._refused.check(caller.tenant, time.monotonic())

    async def read(self, data: bytes, caller: Caller) -> ReadBody:
        """A JSON object. When it is refused, here or within it, its tenant is charged for it.

        Raises InvalidRequest, RequestTooLarge, RateLimited when too much was refused before, or
        Overloaded when there are too many bytes.
        """
        self.check(caller)
        self._bytes.hold(caller.tenant, len(data))
        raw = RawBody(data)
        try:
            if raw.reading_ms > _SHORT_MS:
                await self._line.turn(caller.tenant.id)
                self.check(caller)
            return ReadBody(self, caller.tenant, raw, raw.parse())
        except BaseException as exc:
            self.end(caller.tenant, raw, exc)
            raise

    def end(self, tenant: Tenant, raw: RawBody, error: BaseException | None) -> None:
        """What the body asked for is accepted, or is not for this error."""
        self._bytes.let_go(tenant, raw.num_bytes)
        if not isinstance(error, RequestError) or error.status_code in _NO_FAULT:
            return
        if 400 <= error.status_code < 500:
            self._refused.charge(tenant, _REFUSAL_MS + raw.reading_ms, time.monotonic())


class ReadBody:
    """A body in hand, until the block that reads it has ended."""

    __slots__ = ("_body", "_intake", "_raw", "_tenant")

    def __init__(
        self, intake: BodyIntake, tenant: Tenant, raw: RawBody, body: dict[str, Any]
    ) -> None:
        self._intake = intake
        self._tenant = tenant
        self._raw = raw
        self._body = body

    def __enter__(self) -> dict[str, Any]:
        return self._body

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._intake.end(self._tenant, self._raw, error)
