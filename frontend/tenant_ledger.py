"""How many requests each tenant has outstanding: waiting or running, until nobody reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frontend.tenant import Tenant
from shared.subjects import Lane


class TenantLedger:
    """The requests that are read at this frontend, and their number by tenant and class."""

    def __init__(self) -> None:
        self._whose: dict[str, tuple[str, str]] = {}  # by rid: tenant, class
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, rid: str, tenant: str, job_class: str) -> None:
        """A request is read from now on."""
        self._whose[rid] = (tenant, job_class)
        self._counts[tenant, job_class] += 1

    def remove(self, rid: str) -> None:
        """It has ended, or is somebody else's business."""
        key = self._whose.pop(rid)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def num_outstanding(self, tenant: str, job_class: str) -> int:
        return self._counts[tenant, job_class]

    def lanes(self, tenant: Tenant, job_class: str, num_requests: int) -> Sequence[Lane]:
        """Where the next so many requests of a tenant go."""
        before = self.num_outstanding(tenant.name, job_class)
        return [Lane(job_class, tenant.lane_level(before + idx)) for idx in range(num_requests)]
