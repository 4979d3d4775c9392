"""What tenants have had done for nothing: the time that their refused requests have taken."""

from __future__ import annotations

from frontend.tenants.rate_bucket import RateBucket
from frontend.tenants.tenant import Tenant
from shared.errors import RateLimited

_MS_PER_MINUTE = 2000  # of the event loop; two seconds at once, a thirtieth of it for ever


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
