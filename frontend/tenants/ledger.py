"""What tenants have outstanding, here and at other frontends, and what they have used lately."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from frontend.tenants.rate_limiter import RateLimiter
from frontend.tenants.tenant import Tenant
from shared.subjects import JOB_CLASSES, Lane

Count = Counter[tuple[str, str]]  # requests that wait or run, by tenant's id and class


class TenantLedger:
    """The requests that are read at this frontend, and how many others have told us of."""

    def __init__(self) -> None:
        self.rates = RateLimiter()
        self.changed = asyncio.Event()  # whoever tells others of it clears this
        self._whose: dict[str, tuple[str, str]] = {}  # by rid
        self._here: Count = Counter()
        self._elsewhere: dict[str, Count] = {}  # by frontend

    def add(self, rid: str, tenant: str, job_class: str) -> None:
        """A request is read from now on."""
        self._whose[rid] = (tenant, job_class)
        self._here[tenant, job_class] += 1
        self.changed.set()

    def remove(self, rid: str) -> None:
        """It has ended, or is somebody else's business."""
        key = self._whose.pop(rid)
        self._here[key] -= 1
        if not self._here[key]:
            del self._here[key]
        self.changed.set()

    def hear(self, frontend_id: str, counts: Mapping[tuple[str, str], int]) -> None:
        """All that another frontend has now."""
        self._elsewhere[frontend_id] = Counter(counts)

    def forget(self, frontend_id: str, now: float) -> None:
        """That frontend is gone."""
        self._elsewhere.pop(frontend_id, None)
        self.rates.forget(frontend_id, now)

    @property
    def here(self) -> Mapping[tuple[str, str], int]:
        """The counts of this frontend alone."""
        return self._here

    def num_outstanding(self, tenant: str, job_class: str) -> int:
        """The number at all frontends."""
        key = (tenant, job_class)
        return self._here[key] + sum(count[key] for count in self._elsewhere.values())

    def num_of_all_classes(self, tenant: str) -> int:
        return sum(self.num_outstanding(tenant, job_class) for job_class in JOB_CLASSES)

    def lanes(self, tenant: Tenant, job_class: str, num_requests: int) -> Sequence[Lane]:
        """Where the next so many requests of a tenant go."""
        before = self.num_outstanding(tenant.id, job_class)
        return [Lane(job_class, tenant.lane_level(before + idx)) for idx in range(num_requests)]
