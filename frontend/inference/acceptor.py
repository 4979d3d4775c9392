"""Puts the requests of a job into the queue: from there on none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from frontend.inference.admission.admission import Admission
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.job_requests import JobRequests
from frontend.inference.submitter import Submitter
from frontend.inference.telemetry.server_span import describe_requests
from frontend.jobs.job import Caller, Job
from frontend.jobs.stored_response import ResponseView, StoredResponse
from frontend.models.model_directory import ModelDirectory
from frontend.streams.generation import Generation
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.answer import Answer
from frontend.surfaces.responses.request_keeper import RequestKeeper
from frontend.surfaces.responses.response_starts import ResponseStarts
from shared.errors import PerhapsQueued, RequestError
from shared.protocol.request import GenerateRequest, RequestGroup


class Keepers(NamedTuple):
    """They store what is kept of a request before it is queued."""

    responses: ResponseStarts
    requests: RequestKeeper


class Acceptor:
    """Who comes too often or too late is refused here, and leaves no trace."""

    def __init__(
        self,
        models: ModelDirectory,
        requests: JobRequests,
        admission: Admission,
        router: ReplyRouter,
        attachments: Attachments,
        keepers: Keepers,
        submitter: Submitter,
        answers: OpenAnswers,
    ) -> None:
        self._models = models
        self._requests = requests
        self._admission = admission
        self._router = router
        self._attachments = attachments
        self._keepers = keepers
        self._submitter = submitter
        self._answers = answers

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
        made = await self._requests.of(job, group, caller, is_shared=is_shared)
        requests = [each.request for each in made]
        generation = Generation.of(
            [(each.request.rid, each.reply) for each in made],
            caller,
            pool=job.model.card.pool,
            arrived_at=arrived_at,
            remaining_s=caller.deadline_s,
            queue_timeout_s=caller.queue_timeout_s,
            token_texts=job.model.text.token_texts,
            labels=job.model.labels,
        )
        describe_requests(caller.span, requests, stream=job.stream)
        lanes = self._admission.admit(caller, job)
        self._router.add(generation)
        try:
            if not is_first and (await self._attachments.join_all(generation)).is_ending:
                self._router.remove(generation)
                self._admission.give_back(caller, job)
                return None
            kept_headers: Mapping[str, str] = {}
            if job.response is not None:
                requests = [await self._kept(job, requests[0], generation)]
                if job.response.conversation is not None:
                    await self._keepers.responses.begin(job.response.conversation, requests[0].rid)
            else:
                requests, kept_headers = await self._keepers.requests.keep(requests, job, caller)
            await self._submitter.submit(
                requests, lanes, job.pixels, caller.span, needed_level=job.needed_level
            )
        except BaseException as exc:
            self._router.remove(generation)
            self._admission.give_back(caller, job)
            if requests[0].reply.kept_at and not is_shared and _is_refusal(exc):
                for request in requests:
                    await self._keepers.responses.forget(request.rid)
            raise
        generation.is_stored = True
        self._admission.note_stored(caller, job)
        headers = {**self._admission.headers(caller.tenant), **kept_headers}
        if job.fork is not None:
            headers |= job.fork.headers
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
        kept_at = await self._keepers.responses.keep(record)
        reply = msgspec.structs.replace(request.reply, kept_at=kept_at)
        return msgspec.structs.replace(request, reply=reply)


def _is_refusal(error: BaseException) -> bool:
    """Whether the queue has certainly not stored the request, so that nobody will ask for what
    was stored beside it.
    """
    return isinstance(error, RequestError) and not isinstance(error, PerhapsQueued)
