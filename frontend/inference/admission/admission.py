"""Whether a request may come in, and the honest refusal when it may not."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from frontend.inference.admission.accept_line import MAX_ACTIVE, AcceptLine
from frontend.inference.admission.drain_rate import MAX_RETRY_AFTER_S, QueueWatch
from frontend.inference.admission.queue_limits import QueueLimits
from frontend.jobs.job import Caller, Job
from frontend.limits.stream_limits import StreamLimits
from frontend.metrics import AcceptanceMetrics
from frontend.tenants.ledger import TenantLedger
from frontend.tenants.tenant import Tenant
from shared.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    QueueFull,
    RateLimited,
    RequestError,
)
from shared.subjects import JOB_CLASSES, Lane


class Admission:
    """Asks the limits of the tenant, then those of the queue. What is let in is counted."""

    def __init__(
        self,
        ledger: TenantLedger,
        watch: QueueWatch,
        limits: QueueLimits,
        streams: StreamLimits,
        metrics: AcceptanceMetrics,
    ) -> None:
        self.line = AcceptLine()
        self._ledger = ledger
        self._watch = watch
        self._limits = limits
        self._streams = streams
        self._metrics = metrics

    def overload(self) -> RequestError | None:
        """Why an interactive request is sent away unread now; None: it may stand in line."""
        return None if self.line.num_waiting < MAX_ACTIVE else self._no_place(JOB_CLASSES[0])

    async def turn(self, caller: Caller) -> tuple[Caller, AbstractContextManager[None]]:
        """The caller with what is left to it of its times when its turn has come, and the turn,
        which has begun: the time in which a request is checked and stored.

        Raises RateLimited, QueueFull (Overloaded: the line is full), DeadlineExceeded, or
        RequestCancelled when the client goes away while it stands in line.
        """
        self._check_tenant(caller, 1, 0)  # spares the work for one that is refused anyway
        self._check_streams(caller)
        self._check_line(caller)
        queue_timeout_s = caller.queue_timeout_s or float("inf")
        patience_s = min(caller.deadline_s, queue_timeout_s)
        try:
            waited_s = await self.line.wait(caller.tenant.id, caller.presence, patience_s)
        except TimeoutError as exc:
            raise DeadlineExceeded(
                f"The request stood in line for {patience_s:g} s, and was not accepted.",
                code="queue_timeout" if patience_s == queue_timeout_s else None,
            ) from exc
        return caller.later(waited_s) if waited_s else caller, self.line.turn()

    def _check_line(self, caller: Caller) -> None:
        """As many may stand in line as the queue has room for, at most half of them of one tenant.

        Raises QueueFull.
        """
        if self.line.num_waiting < MAX_ACTIVE:
            return
        try:
            if (refusal := self._no_place(caller.job_class, caller.tenant.id)) is not None:
                raise refusal
        except RequestError as exc:
            self._count_refused(exc, caller)
            raise

    def _no_place(self, job_class: str, tenant_id: str = "") -> QueueFull | None:
        """Where there are keys, a tenant leaves as many places free as it has: others find some."""
        num_waiting, room = self.line.num_waiting, self._limits.room(job_class)
        num_free = max(MAX_ACTIVE, room) - num_waiting
        if num_free > (self.line.num_of(tenant_id) if tenant_id else 0):
            return None
        if room <= MAX_ACTIVE:
            return QueueFull(
                f"The queue is full (--queue-max-{job_class}), and {num_waiting} requests stand "
                "in line before it; try again later.",
                self._watch.drain.retry_after_s(1),
            )
        wait_s = min(MAX_RETRY_AFTER_S, self.line.wait_s)
        return Overloaded(
            f"{num_waiting} requests stand in line before the queue, which has room for {room} "
            f"more (--queue-max-{job_class}); try again later.",
            max(1, math.ceil(wait_s)),
        )

    def admit(self, caller: Caller, job: Job) -> Sequence[Lane]:
        """Count it in; returns the lane of each request.

        Raises RateLimited, QueueFull or InvalidRequest.
        """
        num_choices, num_tokens = job.num_choices, job.num_prompt_tokens
        lanes = self._ledger.lanes(caller.tenant, caller.job_class, num_choices)
        self._check_tenant(caller, num_choices, num_tokens)
        self._check_streams(caller)
        try:
            if job.has_prompt_objects:
                self._streams.check_prompt()
            self._limits.check(job.model.card, caller.job_class, num_choices)
        except RequestError as exc:
            self._count_refused(exc, caller)
            raise
        self._ledger.rates.take(caller.tenant, 1, num_tokens, time.monotonic())
        self._watch.note_accepted(job.model.card.pool, caller.job_class, num_choices)
        return lanes

    def note_stored(self, caller: Caller, job: Job) -> None:
        """The queue has taken what was let in."""
        self._watch.note_stored(job.model.card.pool, caller.job_class, job.num_choices)
        num_tokens = job.num_prompt_tokens
        self._metrics.prompt_tokens.labels(job.model.name).inc(num_tokens)
        self._metrics.request_prompt_tokens.of(job.model.name).observe(num_tokens)

    def admit_call(self, caller: Caller) -> None:
        """Count in what takes no place in the queue. Raises RateLimited."""
        now = time.monotonic()
        try:
            self._ledger.rates.check(caller.tenant, None, now)
        except RequestError as exc:
            self._count_refused(exc, caller)
            raise
        self._ledger.rates.take(caller.tenant, 1, 0, now)

    def give_back(self, caller: Caller, job: Job) -> None:
        """The queue did not take what was let in."""
        num_tokens = job.num_prompt_tokens
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

    def _check_streams(self, caller: Caller) -> None:
        try:
            self._streams.check()
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
        num_held = self._ledger.num_of_all_classes(tenant.id)
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
