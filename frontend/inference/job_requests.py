"""The requests of a job, as they go into the queue."""

from __future__ import annotations

from collections.abc import Sequence

from nats.aio.client import Client

from frontend.inference.public_prefixes import PublicPrefixes
from frontend.jobs.job import Caller, Job, MadeRequest
from frontend.tenants.cache_scope import CacheScope
from shared.protocol.logprobs import max_logprob_bytes
from shared.protocol.request import RequestGroup


class JobRequests:
    """Makes them: each says where its text is heard, and with whom it shares cached prefixes."""

    def __init__(
        self, nc: Client, subject: str, cache_scope: CacheScope, public_prefixes: PublicPrefixes
    ) -> None:
        self._nc = nc
        self._subject = subject
        self._cache_scope = cache_scope
        self._public_prefixes = public_prefixes

    async def of(
        self, job: Job, group: RequestGroup, caller: Caller, *, is_shared: bool
    ) -> list[MadeRequest]:
        """One for each choice of each prompt. Raises InvalidRequest."""
        return job.requests(
            group.group_id,
            caller,
            created=group.created,
            subject=self._subject,
            frontend_id=group.frontend_id,
            max_logprob_bytes=max_logprob_bytes(self._nc.max_payload),
            cache_salt=self._salt(job, caller),
            num_public_tokens=await self._num_public_tokens(job),
            is_shared=is_shared,
        )

    def _salt(self, job: Job, caller: Caller) -> str:
        if job.fork is not None:
            return job.fork.cache_salt
        return self._cache_scope.salt(caller.tenant, job.model.card.name, job.sampling.cache_salt)

    async def _num_public_tokens(self, job: Job) -> Sequence[int]:
        if job.fork is not None:
            return [job.fork.num_public_tokens]
        return await self._public_prefixes.num_tokens(job)
