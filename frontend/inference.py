"""The core that HTTP and NATS share: bodies become generations, and generations come to an end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from frontend.acceptor import Acceptor
from frontend.admission import Admission
from frontend.answer import Answer
from frontend.answers.event_id import EventId
from frontend.idempotency.key import FIELD, fingerprint, key_name, key_of
from frontend.idempotency.keyed_request import KeyedRequest
from frontend.idempotency.keyed_start import KeyedStarts
from frontend.idempotency.store import IdempotencyStore
from frontend.job import Caller
from frontend.metrics import FrontendMetrics
from frontend.open_answers import OpenAnswers
from frontend.queue_timeout import take_queue_timeout
from frontend.reply_router import ReplyRouter
from frontend.requests.job_reader import JobReader
from frontend.responses.stored_response import KeptResponse
from frontend.resuming.resumer import Resumer
from frontend.resuming.stream_finder import StreamFinder
from frontend.server_span import ServerSpans
from frontend.terminator import Terminator
from shared.errors import BrokerError, NotFound, RequestError, ServiceUnavailable
from shared.protocol.finish import FinishReason
from shared.protocol.reply import Surface
from shared.protocol.request import RequestGroup
from shared.subjects import new_rid, pool_slug
from shared.tracing import ended_on_error


class Inference:
    """Starts, resumes, aborts and closes."""

    def __init__(
        self,
        jobs: JobReader,
        acceptor: Acceptor,
        resumer: Resumer,
        answers: OpenAnswers,
        admission: Admission,
        finder: StreamFinder,
        router: ReplyRouter,
        terminator: Terminator,
        idempotency: IdempotencyStore,
        metrics: FrontendMetrics,
        spans: ServerSpans,
        frontend_id: str,
    ) -> None:
        self._jobs = jobs
        self._acceptor = acceptor
        self._resumer = resumer
        self._answers = answers
        self._admission = admission
        self._finder = finder
        self._router = router
        self._terminator = terminator
        self._keyed_starts: KeyedStarts[Answer] = KeyedStarts(idempotency, metrics, frontend_id)
        self._metrics = metrics
        self._spans = spans
        self._frontend_id = frontend_id
        self.is_draining = False

    async def start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        """Validate, tokenize, and put into the queue. Returns once it is stored there.

        With an idempotency key that was used before, join that request instead.
        Raises RequestError.
        """
        caller = self._spans.begin(caller, surface)
        with ended_on_error(caller.span):
            return await self._start(surface, body, caller)

    async def _start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        self._refuse_when_draining()
        arrived_at = asyncio.get_running_loop().time()
        key = key_of(body, caller.idempotency_key)
        body.pop(FIELD, None)
        queue_timeout_s = take_queue_timeout(body, caller.queue_timeout_s)
        if queue_timeout_s != caller.queue_timeout_s:
            caller = replace(caller, queue_timeout_s=queue_timeout_s)
        if key:
            return await self._keyed_starts.start(
                KeyedRequest(self._jobs, self._acceptor, self._resumer, surface, body, caller),
                key,
                key_name(caller.owner, key),
                fingerprint(surface, body),
            )
        self._admission.look(caller)
        job = await self._jobs.job(surface, body, caller)
        group = RequestGroup(new_rid(), "", int(time.time()), self._frontend_id)
        answer = await self._acceptor.queue(job, group, caller, arrived_at)
        assert answer is not None, "nobody knows of it, so nobody has ended it"
        return answer

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        self._refuse_when_draining()
        caller = self._spans.begin(caller)
        with ended_on_error(caller.span):
            return await self._resumer.read_response(kept, caller, starting_after)

    async def resume(
        self, group_id: str, event_id: EventId | None, caller: Caller, *, stream: bool
    ) -> Answer:
        """Go on after the event that the client saw last; from the start when it saw none.

        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        self._refuse_when_draining()
        caller = self._spans.begin(caller)
        try:
            with ended_on_error(caller.span):
                answer = await self._resumer.resume(group_id, event_id, caller, stream=stream)
        except RequestError as exc:
            self._metrics.resumes.labels(exc.code or "error").inc()
            raise
        self._metrics.resumes.labels("ok").inc()
        return answer

    async def abort(self, group_id: str, caller: Caller) -> int:
        """End all choices of a group. Returns how many had not ended by themselves.

        Raises NotFound or ServiceUnavailable.
        """
        local = self._router.find(group_id)
        if local and local[0].reply.owner != caller.owner:
            raise NotFound(f"No request {group_id!r} is known.", code="stream_not_found")
        if local:
            running = [(s.rid, s.reply) for s in local[0].streams if s.finish is None]
        else:
            found = await self._finder.find(group_id, caller.owner)
            running = [
                (choice.rid, choice.reply)
                for choice in found
                if choice.chunk is None or choice.chunk.finish is None
            ]
        try:
            ended = await asyncio.gather(
                *(
                    self._terminator.end(
                        rid, pool_slug(reply.served_model), reply, FinishReason.CANCEL
                    )
                    for rid, reply in running
                )
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The request could not be ended now.") from exc
        return sum(ended)

    def close(self, answer: Answer, status: int, transport: str) -> None:
        """The transport is done with it: nobody reads it here any more."""
        self._answers.close(answer, status, transport)

    def _refuse_when_draining(self) -> None:
        if self.is_draining:
            raise ServiceUnavailable("This frontend is shutting down.")
