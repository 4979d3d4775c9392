"""The core that HTTP and NATS share: bodies become generations, and generations come to an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from frontend.access_log import log_finished
from frontend.admission import Admission
from frontend.answers.event_id import EventId
from frontend.answers.event_writer import public_id
from frontend.answers.token_texts import TokenTexts
from frontend.attachments import Attachments
from frontend.event_feed import EventFeed, Feed
from frontend.generation import Generation, Interrupt, Timings
from frontend.grammars.checker import GrammarChecker
from frontend.idempotency_key import FIELD, fingerprint, key_name, key_of
from frontend.idempotency_store import IdempotencyStore
from frontend.job import Caller, Job
from frontend.keyed_start import Absent, KeyedStarts
from frontend.metrics import FrontendMetrics
from frontend.model_directory import ModelDirectory
from frontend.queue_timeout import take_queue_timeout
from frontend.reply_router import ReplyRouter
from frontend.requests.chat_request import ChatRequests
from frontend.requests.completion_request import CompletionRequests
from frontend.requests.embedding_request import EmbeddingRequests
from frontend.requests.generate_request import GenerateRequests
from frontend.responses.feed import ResponseFeed
from frontend.responses.request import ResponseRequests
from frontend.responses.store import ResponseStore
from frontend.responses.stored_response import KeptResponse, ResponseView, StoredResponse
from frontend.stream_finder import FoundChoice, StreamFinder
from frontend.submitter import Submitter
from frontend.tenants.ledger import TenantLedger
from frontend.terminator import Terminator
from frontend.text_stream import TextStream, tells_logprobs
from shared.done_chunk import done_chunk
from shared.errors import (
    BrokerError,
    InvalidRequest,
    NotFound,
    RequestError,
    ResumeConflict,
    ServiceUnavailable,
)
from shared.logprobs import max_logprob_bytes
from shared.protocol import FinishReason, GenerateRequest, ReplyParams, RequestGroup, Surface
from shared.subjects import new_rid, pool_slug

_CATCH_UP_S = 10.0  # a client may be ahead of a detokenizer that has just taken over


@dataclass(frozen=True, slots=True)
class Answer:
    """An accepted request, to be sent by a transport and closed afterwards."""

    generation: Generation
    feed: Feed
    stream: bool
    resumed: bool  # the client has seen the opening
    headers: Mapping[str, str]  # of an HTTP response


class Inference:
    """Starts, resumes, aborts and closes."""

    def __init__(
        self,
        requests: dict[
            Surface, ChatRequests | CompletionRequests | GenerateRequests | EmbeddingRequests
        ],
        response_requests: ResponseRequests,
        responses: ResponseStore,
        submitter: Submitter,
        router: ReplyRouter,
        ledger: TenantLedger,
        admission: Admission,
        terminator: Terminator,
        finder: StreamFinder,
        models: ModelDirectory,
        attachments: Attachments,
        idempotency: IdempotencyStore,
        metrics: FrontendMetrics,
        frontend_id: str,
        grammar_checker: GrammarChecker,
    ) -> None:
        self._requests = requests
        self._response_requests = response_requests
        self._responses = responses
        self._submitter = submitter
        self._router = router
        self._ledger = ledger
        self._admission = admission
        self._terminator = terminator
        self._finder = finder
        self._models = models
        self._attachments = attachments
        self._keyed_starts: KeyedStarts[Answer] = KeyedStarts(idempotency, metrics, frontend_id)
        self._metrics = metrics
        self._frontend_id = frontend_id
        self._grammar_checker = grammar_checker
        self.is_draining = False
        self.num_open = 0  # answers that a transport is sending
        self._is_cut = False
        self.all_closed = asyncio.Event()  # set while no transport sends an answer
        self.all_closed.set()

    async def start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        """Validate, tokenize, and put into the queue. Returns once it is stored there.

        With an idempotency key that was used before, join that request instead.
        Raises RequestError.
        """
        self._refuse_when_draining()
        arrived_at = asyncio.get_running_loop().time()
        key = key_of(body, caller.idempotency_key)
        body.pop(FIELD, None)
        queue_timeout_s = take_queue_timeout(body, caller.queue_timeout_s)
        if queue_timeout_s != caller.queue_timeout_s:
            caller = replace(caller, queue_timeout_s=queue_timeout_s)
        if key:
            return await self._keyed_starts.start(
                _KeyedRequest(self, surface, body, caller),
                key,
                key_name(caller.owner, key),
                fingerprint(surface, body),
            )
        self._admission.look(caller)
        job = await self.validated(surface, body, caller)
        group = RequestGroup(new_rid(), "", int(time.time()), self._frontend_id)
        answer = await self.queue(job, group, caller, arrived_at)
        assert answer is not None, "nobody knows of it, so nobody has ended it"
        return answer

    async def validated(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        if surface is Surface.RESPONSES:
            job = await self._response_requests.job(body, caller)
        else:
            job = await self._requests[surface].job(body)
        if job.pooling is None and not job.model.card.can_generate:
            raise InvalidRequest(
                f"The model '{job.model.card.name}' makes embeddings, and generates nothing; "
                "use /v1/embeddings.",
                param="model",
            )
        grammar = job.sampling.params.grammar
        if grammar is not None:
            await self._grammar_checker.check(grammar, job.sampling.grammar_param)
        return job

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
        if job.is_detached:
            caller = replace(caller, deadline_s=caller.detached_deadline_s)
        requests = job.requests(
            group.group_id,
            caller,
            created=group.created,
            subject=self._router.subject,
            frontend_id=group.frontend_id,
            max_logprob_bytes=max_logprob_bytes(self._submitter.max_payload),
            is_shared=is_shared,
        )
        generation = self._generation(
            [(request.rid, request.reply) for request in requests],
            pool=job.model.card.pool,
            arrived_at=arrived_at,
            remaining_s=caller.deadline_s,
            queue_timeout_s=caller.queue_timeout_s,
            grace_s=caller.grace_s,
            tenant=caller.tenant.name,
            client_id=caller.client_id,
            token_texts=job.model.text.token_texts,
        )
        lanes = self._ledger.lanes(caller.tenant, caller.job_class, len(requests))
        self._admission.admit(caller, job)
        self._router.add(generation)
        try:
            if not is_first and not await self._attach(generation):
                self._router.remove(generation)
                self._admission.give_back(caller, job)
                return None
            if job.response is not None:
                requests = [await self._kept(job, requests[0], generation)]
            await self._submitter.submit(requests, lanes)
        except BaseException:
            self._router.remove(generation)
            self._admission.give_back(caller, job)
            if requests[0].reply.kept_at and not is_shared:
                await self._responses.forget(requests[0].rid)
            raise
        generation.is_stored = True
        self._count_accepted(job)
        headers = self._admission.headers(caller.tenant)
        return self._answer(generation, headers, stream=job.stream)

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

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        self._refuse_when_draining()
        rid, reply = kept.record.rid, kept.record.reply
        if kept.done is not None:
            found = [FoundChoice(rid, reply, done_chunk(kept.done))]
        else:
            found = await self._finder.find(rid, caller.owner)
        generation = await self._resumed(found, caller, kept.record)
        try:
            await self._catch_up(generation, found, None)
            await self._attach(generation)
        except BaseException:
            self._router.remove(generation)
            raise
        return self._resumed_answer(
            generation, stream=True, resumed=False, starting_after=starting_after
        )

    async def resume(
        self, group_id: str, event_id: EventId | None, caller: Caller, *, stream: bool
    ) -> Answer:
        """Go on after the event that the client saw last; from the start when it saw none.

        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        self._refuse_when_draining()
        try:
            answer = await self._resume(group_id, event_id, caller, stream=stream)
        except RequestError as exc:
            self._metrics.resumes.labels(exc.code or "error").inc()
            raise
        self._metrics.resumes.labels("ok").inc()
        return answer

    async def join(self, group: RequestGroup, caller: Caller, *, stream: bool) -> Answer | Absent:
        """Read a group from its beginning, beside others who may read it. Raises RequestError."""
        found = self._found_here(group.group_id)
        if found is None:
            try:
                found = await self._finder.find(group.group_id, caller.owner)
            except NotFound:
                return Absent.UNKNOWN
        if any(_has_no_result(choice) for choice in found):
            return Absent.OVER
        _check_may_stream(found[0].reply, stream)
        generation = await self._resumed(found, caller)
        try:
            await self._catch_up(generation, found, None)
            if not await self._attach(generation):
                self._router.remove(generation)
                return Absent.OVER
        except BaseException:
            self._router.remove(generation)
            raise
        self._router.ask_for(generation)
        return self._resumed_answer(generation, stream=stream, resumed=False)

    def _found_here(self, group_id: str) -> list[FoundChoice] | None:
        """A running group that is read at this frontend: nobody needs to be asked for it."""
        for generation in self._router.find(group_id):
            if generation.is_stored and not any(s.finish for s in generation.streams):
                return [FoundChoice(s.rid, s.reply, None) for s in generation.streams]
        return None

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
                    self._terminator.end(rid, pool_slug(reply.model), reply, FinishReason.CANCEL)
                    for rid, reply in running
                )
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The request could not be ended now.") from exc
        return sum(ended)

    def close(self, answer: Answer, status: int, transport: str) -> None:
        """The transport is done with it: nobody reads it here any more."""
        generation = answer.generation
        self.num_open -= 1
        if not self.num_open:
            self.all_closed.set()
        self._metrics.in_flight.dec()
        generation.keepalive_s = 0.0
        generation.is_watched = False
        log_finished(generation, status, transport, self._frontend_id)
        self._observe(generation)
        if generation.is_finished:
            self._router.remove(generation)
            for text_stream in generation.streams:
                self._terminator.delete_prompt_later(text_stream.rid, text_stream.reply)
        elif generation.interrupt in (Interrupt.SHUTDOWN, Interrupt.NO_RESULT):
            self._router.remove(generation)
        elif generation.is_detached:
            self._terminator.let_run(generation)
        else:
            if answer.feed.error is not None:
                generation.grace_s = 0.0
            self._terminator.client_gone(generation)

    def cut_all(self) -> None:
        """Close what is open, and what is about to be: its requests run on."""
        self._is_cut = True
        for generation in self._router.generations:
            generation.cut(Interrupt.SHUTDOWN)

    async def _resume(
        self, group_id: str, event_id: EventId | None, caller: Caller, *, stream: bool
    ) -> Answer:
        found = await self._finder.find(group_id, caller.owner)
        if event_id is not None and found[0].reply.surface is Surface.RESPONSES:
            raise InvalidRequest(
                "Events of a response have numbers: "
                f"GET /v1/responses/resp_{group_id}?stream=true&starting_after=",
                param="Last-Event-ID",
            )
        if event_id is not None and len(event_id.marks) != len(found):
            raise ResumeConflict(
                f"The event id describes {len(event_id.marks)} choices, the stream has "
                f"{len(found)}.",
                param="Last-Event-ID",
            )
        _check_may_stream(found[0].reply, stream)
        generation = await self._resumed(found, caller)
        try:
            await self._catch_up(generation, found, event_id)
            await self._attach(generation)
        except BaseException:
            self._router.remove(generation)
            raise
        return self._resumed_answer(generation, stream=stream, resumed=event_id is not None)

    async def _resumed(
        self,
        found: Sequence[FoundChoice],
        caller: Caller,
        record: StoredResponse | None = None,
    ) -> Generation:
        """Of requests that are in the queue, or have been; it hears their text from now on."""
        arrived_at = asyncio.get_running_loop().time()
        first = found[0].reply
        view = await self._response_view(first, record)
        token_texts = None
        if tells_logprobs(first) and view is None:
            token_texts = (await self._models.model(first.model)).text.token_texts
        budget_s = first.deadline_s or caller.deadline_s
        generation = self._generation(
            [(choice.rid, choice.reply) for choice in found],
            pool=pool_slug(first.model),
            arrived_at=arrived_at,
            remaining_s=first.created + budget_s - time.time(),
            queue_timeout_s=_left_s(first),
            grace_s=caller.grace_s,
            tenant=caller.tenant.name,
            client_id=caller.client_id,
            token_texts=token_texts,
        )
        generation.is_resumed = generation.is_stored = True
        generation.response = view
        self._router.add(generation)
        return generation

    async def _response_view(
        self, reply: ReplyParams, record: StoredResponse | None
    ) -> ResponseView | None:
        """None for a request of another API. Raises NotFound when the response is not kept."""
        if reply.surface is not Surface.RESPONSES:
            return None
        if record is None:
            record = (await self._responses.get(public_id(reply), reply.owner)).record
        return ResponseView(record, await self._models.text(record.tokenizer_hash))

    def _resumed_answer(
        self, generation: Generation, *, stream: bool, resumed: bool, starting_after: int = -1
    ) -> Answer:
        answer = self._answer(
            generation, {}, stream=stream, resumed=resumed, starting_after=starting_after
        )
        for text_stream in generation.streams:
            if text_stream.has_pending or text_stream.finish is not None:
                generation.on_news(text_stream)
        return answer

    async def _catch_up(
        self, generation: Generation, found: Sequence[FoundChoice], event_id: EventId | None
    ) -> None:
        """Receive what is there, and check that the client's text is the beginning of it."""
        now = asyncio.get_running_loop().time()
        for stream, choice in zip(generation.streams, found, strict=True):
            if choice.chunk is not None:
                stream.receive(choice.chunk, now)
        if event_id is None:
            return
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                while any(
                    stream.have < mark.text_len and stream.finish is None
                    for stream, mark in zip(generation.streams, event_id.marks, strict=True)
                ):
                    await generation.wait_news()
        except TimeoutError as exc:
            raise ServiceUnavailable(
                "The stream has not yet come to where this event id says.", retry_after_s=2
            ) from exc
        for stream, mark in zip(generation.streams, event_id.marks, strict=True):
            if stream.have < mark.text_len or not stream.skip_to(mark):
                raise ResumeConflict(
                    "The text that this event id describes is not the beginning of this stream.",
                    param="Last-Event-ID",
                )

    async def _attach(self, generation: Generation) -> bool:
        """Tell other frontends that the stream is read here: stored before the stream opens.

        False: one of its requests is being ended.
        """
        try:
            joined = await asyncio.gather(
                *(
                    self._attachments.join(stream.rid, stream.reply)
                    for stream in generation.streams
                    if stream.finish is None
                )
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The stream could not be attached now.") from exc
        return all(joined)

    def _generation(
        self,
        choices: Sequence[tuple[str, ReplyParams]],
        *,
        pool: str,
        arrived_at: float,
        remaining_s: float,
        queue_timeout_s: float,
        grace_s: float,
        tenant: str,
        client_id: str,
        token_texts: TokenTexts | None,
    ) -> Generation:
        now = asyncio.get_running_loop().time()
        first = choices[0][1]
        queue_timeout_at = now + queue_timeout_s if queue_timeout_s else float("inf")
        generation = Generation(
            group_id=first.group_id,
            pool=pool,
            timings=Timings(arrived_at),
            deadline_at=now + remaining_s,
            queue_timeout_at=queue_timeout_at,
            grace_s=grace_s,
            tenant=tenant,
            client_id=client_id,
            token_texts=token_texts if tells_logprobs(first) else None,
        )
        by_tokens = first.surface in (Surface.GENERATE, Surface.RESPONSES)
        keep_token_ids = by_tokens or first.tells_token_ids or tells_logprobs(first)
        generation.streams.extend(
            TextStream(rid, reply, generation.on_news, keep_token_ids=keep_token_ids, now=now)
            for rid, reply in choices
        )
        return generation

    def _answer(
        self,
        generation: Generation,
        headers: Mapping[str, str],
        *,
        stream: bool,
        resumed: bool = False,
        starting_after: int = -1,
    ) -> Answer:
        self.num_open += 1
        self.all_closed.clear()
        if self._is_cut:  # it was on its way when the others were
            generation.cut(Interrupt.SHUTDOWN)
        self._metrics.in_flight.inc()
        latency = self._metrics.inter_token_latency
        feed: Feed
        if generation.response is not None:
            feed = ResponseFeed(generation, generation.response, latency, starting_after)
        else:
            feed = EventFeed(generation, latency)
        return Answer(generation, feed, stream, resumed, headers)

    def _refuse_when_draining(self) -> None:
        if self.is_draining:
            raise ServiceUnavailable("This frontend is shutting down.")

    def _count_accepted(self, job: Job) -> None:
        name = job.model.card.name
        num_tokens = sum(len(prompt.token_ids) for prompt in job.prompts)
        self._metrics.prompt_tokens.labels(name).inc(num_tokens)
        self._metrics.request_prompt_tokens.labels(name).observe(num_tokens)

    def _observe(self, generation: Generation) -> None:
        metrics, model = self._metrics, generation.reply.model
        now = asyncio.get_running_loop().time()
        for stream in generation.streams:
            if stream.finish is not None:
                metrics.request_success.labels(model, stream.finish.reason.value).inc()
        if generation.is_resumed:
            return
        num_tokens = sum(stream.position for stream in generation.streams)
        metrics.generation_tokens.labels(model).inc(num_tokens)
        if generation.timings.first_text_at:
            ttft_s = generation.timings.first_text_at - generation.timings.arrived_at
            metrics.time_to_first_token.labels(model).observe(ttft_s)
        if generation.is_finished:
            duration_s = now - generation.timings.arrived_at
            metrics.e2e_latency.labels(model).observe(duration_s)
            metrics.request_generation_tokens.labels(model).observe(num_tokens)


@dataclass(slots=True)
class _KeyedRequest:
    """A request with an idempotency key; what is checked once stays checked."""

    inference: Inference
    surface: Surface
    body: dict[str, Any]
    caller: Caller
    arrived_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    job: Job | None = None

    async def validate(self) -> None:
        if self.job is None:
            self.job = await self.inference.validated(self.surface, self.body, self.caller)

    async def queue(self, group: RequestGroup, *, is_first: bool) -> Answer | Absent:
        assert self.job is not None, "checked before"
        answer = await self.inference.queue(
            self.job, group, self.caller, self.arrived_at, is_shared=True, is_first=is_first
        )
        return Absent.OVER if answer is None else answer

    async def join(self, group: RequestGroup) -> Answer | Absent:
        stream = bool(self.body.get("stream"))
        return await self.inference.join(group, self.caller, stream=stream)


def _check_may_stream(reply: ReplyParams, stream: bool) -> None:
    """Raises InvalidRequest."""
    if stream and reply.num_kept:
        raise InvalidRequest(
            "The choices of this request are ranked at their end ('best_of'): ask for the whole "
            "answer, with stream=false.",
            param="stream",
        )


def _left_s(reply: ReplyParams) -> float:
    """Of a resumed request's time in the queue; 0: it has no bound of its own."""
    if not reply.queue_timeout_s:
        return 0.0
    return max(0.001, reply.created + reply.queue_timeout_s - time.time())


def _has_no_result(choice: FoundChoice) -> bool:
    finish = None if choice.chunk is None else choice.chunk.finish
    return finish is not None and finish.reason in (
        FinishReason.CANCEL,
        FinishReason.DEADLINE,
        FinishReason.QUEUE_TIMEOUT,
        FinishReason.WEIGHTS_REPLACED,
    )
