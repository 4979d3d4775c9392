"""Puts the requests of a job into the queue: from there on none is lost."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from frontend.inference.admission.admission import Admission
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.public_prefixes import PublicPrefixes
from frontend.inference.submitter import Submitter
from frontend.inference.telemetry.server_span import describe_requests
from frontend.jobs.job import Caller, Job
from frontend.jobs.stored_response import ResponseView, StoredResponse
from frontend.metrics import FrontendMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.streams.generation import Generation
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.answer import Answer
from frontend.surfaces.responses.store import ResponseStore
from frontend.tenants.cache_scope import CacheScope
from frontend.tenants.ledger import TenantLedger
from shared.errors import PerhapsQueued, RequestError
from shared.protocol.logprobs import max_logprob_bytes
from shared.protocol.request import GenerateRequest, RequestGroup
from shared.protocol.sealed_replies import unseal


class Acceptor:
    """Who comes too often or too late is refused here, and leaves no trace."""

    def __init__(
        self,
        submitter: Submitter,
        router: ReplyRouter,
        ledger: TenantLedger,
        admission: Admission,
        attachments: Attachments,
        responses: ResponseStore,
        answers: OpenAnswers,
        cache_scope: CacheScope,
        public_prefixes: PublicPrefixes,
        metrics: FrontendMetrics,
        models: ModelDirectory,
    ) -> None:
        self._submitter = submitter
        self._router = router
        self._ledger = ledger
        self._admission = admission
        self._attachments = attachments
        self._responses = responses
        self._answers = answers
        self._cache_scope = cache_scope
        self._public_prefixes = public_prefixes
        self._metrics = metrics
        self._models = models

    async def queue(
        self,
        job: Job,
        group: RequestGroup,
        caller: Caller,
        arrived_at: float,
        *,
        is_shared: bool = False,
        is_first: bool = True,
    ) -> Answer | None:
        """Put the requests of a group into the queue.

        When we are not the first to do so, None: the group is being ended. Raises RequestError.
        """
        if is_first and (refusal := self._models.refusal(job.model.card)) is not None:
            raise refusal
        if job.is_detached:
            caller = replace(caller, deadline_s=caller.detached_deadline_s)
        requests = job.requests(
            group.group_id,
            caller,
            created=group.created,
            subject=self._router.subject,
            frontend_id=group.frontend_id,
            max_logprob_bytes=max_logprob_bytes(self._submitter.max_payload),
            cache_salt=self._cache_scope.salt(
                caller.tenant, job.model.card.name, job.sampling.cache_salt
            ),
            num_public_tokens=await self._public_prefixes.num_tokens(job),
            is_shared=is_shared,
        )
        generation = Generation.of(
            [(request.rid, unseal(request.reply)) for request in requests],
            caller,
            pool=job.model.card.pool,
            arrived_at=arrived_at,
            remaining_s=caller.deadline_s,
            queue_timeout_s=caller.queue_timeout_s,
            token_texts=job.model.text.token_texts,
        )
        describe_requests(caller.span, requests, stream=job.stream)
        lanes = self._ledger.lanes(caller.tenant, caller.job_class, len(requests))
        self._admission.admit(caller, job)
        self._router.add(generation)
        try:
            if not is_first and (await self._attachments.join_all(generation)).is_ending:
                self._router.remove(generation)
                self._admission.give_back(caller, job)
                return None
            if job.response is not None:
                requests = [await self._kept(job, requests[0], generation)]
            await self._submitter.submit(requests, lanes, job.pixels, caller.span)
        except BaseException as exc:
            self._router.remove(generation)
            self._admission.give_back(caller, job)
            if requests[0].reply.kept_at and not is_shared and _is_refusal(exc):
                await self._responses.forget(requests[0].rid)
            raise
        generation.is_stored = True
        self._count_accepted(job)
        headers = self._admission.headers(caller.tenant)
        return self._answers.open(generation, headers, stream=job.stream)

    async def _kept(
        self, job: Job, request: GenerateRequest, generation: Generation
    ) -> GenerateRequest:
        """The request of a response, whose record is stored before it is queued."""
        assert job.response is not None
        record = StoredResponse.of(request, job.response.params, job.response.items)
        generation.response = ResponseView(record, job.model.text)
        if not record.params.store:
            return request
        kept_at = await self._responses.put(record)
        reply = msgspec.structs.replace(request.reply, kept_at=kept_at)
        return msgspec.structs.replace(request, reply=reply)

    def _count_accepted(self, job: Job) -> None:
        name = job.model.name
        num_tokens = sum(len(prompt.token_ids) for prompt in job.prompts)
        self._metrics.prompt_tokens.labels(name).inc(num_tokens)
        self._metrics.request_prompt_tokens.labels(name).observe(num_tokens)


def _is_refusal(error: BaseException) -> bool:
    """Whether the queue has certainly not stored the request, so that nobody will ask for what
    was stored beside it.
    """
    return isinstance(error, RequestError) and not isinstance(error, PerhapsQueued)
