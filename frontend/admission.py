"""Whether a request may come in, and the honest refusal when it may not."""

from __future__ import annotations

import time

from frontend.drain_rate import QueueWatch
from frontend.job import Caller, Job
from frontend.metrics import FrontendMetrics
from frontend.queue_limits import QueueLimits
from frontend.tenants.ledger import TenantLedger
from frontend.tenants.tenant import Tenant
from shared.errors import InvalidRequest, RateLimited, RequestError


class Admission:
    """Asks the limits of the tenant, then those of the queue. What is let in is counted."""

    def __init__(
        self,
        ledger: TenantLedger,
        watch: QueueWatch,
        limits: QueueLimits,
        metrics: FrontendMetrics,
    ) -> None:
        self._ledger = ledger
        self._watch = watch
        self._limits = limits
        self._metrics = metrics

    def look(self, caller: Caller) -> None:
        """Spare the work for a request that is refused anyway. Raises RateLimited."""
        self._check_tenant(caller, 1, 0)

    def admit(self, caller: Caller, job: Job) -> None:
        """Count it in. Raises RateLimited, QueueFull or InvalidRequest."""
        num_tokens = _num_prompt_tokens(job)
        self._check_tenant(caller, job.num_choices, num_tokens)
        try:
            self._limits.check(job.model.card, caller.job_class, job.num_choices)
        except RequestError as exc:
            self._count_refused(exc, caller)
            raise
        self._ledger.rates.take(caller.tenant, 1, num_tokens, time.monotonic())
        self._watch.note_accepted(job.model.card.pool, caller.job_class, job.num_choices)

    def give_back(self, caller: Caller, job: Job) -> None:
        """The queue did not take what was let in."""
        num_tokens = _num_prompt_tokens(job)
        self._ledger.rates.take(caller.tenant, -1, -num_tokens, time.monotonic())
        self._watch.note_accepted(job.model.card.pool, caller.job_class, -job.num_choices)

    def headers(self, tenant: Tenant) -> dict[str, str]:
        """OpenAI's `x-ratelimit-*`, for tenants that have a rate."""
        return self._ledger.rates.headers(tenant, time.monotonic())

    def _check_tenant(self, caller: Caller, num_requests: int, num_tokens: int) -> None:
        tenant = caller.tenant
        try:
            self._check_concurrency(tenant, num_requests)
            self._ledger.rates.check(tenant, num_tokens, time.monotonic())
        except RequestError as exc:
            self._count_refused(exc, caller)
            raise

    def _check_concurrency(self, tenant: Tenant, num_requests: int) -> None:
        limit = tenant.max_concurrent
        if limit is None:
            return
        if num_requests > limit:
            raise InvalidRequest(
                f"This is {num_requests} requests in one (prompts times n); "
                f"your key may have {limit} at a time."
            )
        num_held = self._ledger.num_of_all_classes(tenant.name)
        num_missing = num_held + num_requests - limit
        if num_missing > 0:
            wait_s = self._watch.drain.wait_s(num_missing, num_held)
            raise RateLimited(
                f"Your key may have {limit} requests at a time, and {num_held} wait or run "
                "(each of n choices and of several prompts is one).",
                wait_s,
                kind="requests",
                headers=self.headers(tenant),
            )

    def _count_refused(self, error: RequestError, caller: Caller) -> None:
        self._metrics.refused.labels(error.code or "error", caller.job_class).inc()


def _num_prompt_tokens(job: Job) -> int:
    return sum(len(prompt.token_ids) for prompt in job.prompts)
