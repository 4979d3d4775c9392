"""Reads requests that some frontend accepted: again, from a place on, or beside other readers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from frontend.inference.admission.admission import Admission
from frontend.inference.answers.attachments import Attachments, Joined
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.idempotency import Absent
from frontend.inference.resuming.stream_finder import FoundChoice, KnownChoice, StreamFinder
from frontend.inference.telemetry.server_span import describe_resumed
from frontend.jobs.job import Caller
from frontend.jobs.stored_response import KeptResponse, ResponseView, StoredResponse
from frontend.metrics import StreamMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.streams.generation import Generation, Interrupted, error_of_interrupt
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.answer import Answer
from frontend.surfaces.responses.store import ResponseStore
from frontend.text.event_id import EventId
from frontend.text.event_writer import public_id
from frontend.text.text_stream import needs_token_texts
from shared.errors import InvalidRequest, NotFound, RequestError, ResumeConflict, ServiceUnavailable
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.request import RequestGroup
from shared.subjects import pool_slug

_UNNUMBERED = (Surface.MESSAGES, Surface.OLLAMA_CHAT, Surface.OLLAMA_GENERATE)
_CATCH_UP_S = 10.0  # a client may be ahead of a detokenizer that has just taken over


class Resumer:
    """What a reader gets is what the log says, whoever reads it beside or read it before."""

    def __init__(
        self,
        finder: StreamFinder,
        router: ReplyRouter,
        models: ModelDirectory,
        attachments: Attachments,
        responses: ResponseStore,
        answers: OpenAnswers,
        admission: Admission,
        metrics: StreamMetrics,
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._finder = finder
        self._router = router
        self._models = models
        self._attachments = attachments
        self._responses = responses
        self._answers = answers
        self._line: Counter[str] = Counter()  # group ids that clients are just coming back to

    def is_in_line(self, group_id: str) -> bool:
        """Whether a client is on its way to reading this group here."""
        return group_id in self._line

    async def resume(
        self,
        group_id: str,
        event_id: EventId | None,
        caller: Caller,
        *,
        stream: bool,
        looks_on: bool = False,
    ) -> Answer:
        """Go on after the event that the client saw last; from the start when it saw none.

        Who `looks_on` is no reader: others end it as if nobody looked.

        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        try:
            self._admission.admit_call(caller)
            with nullcontext() if looks_on else self._in_line(group_id):
                answer = await self._resume(
                    group_id, event_id, caller, stream=stream, looks_on=looks_on
                )
        except RequestError as exc:
            self._metrics.resumes.labels(exc.code or "error").inc()
            raise
        self._metrics.resumes.labels("ok").inc()
        return answer

    async def _resume(
        self,
        group_id: str,
        event_id: EventId | None,
        caller: Caller,
        *,
        stream: bool,
        looks_on: bool = False,
    ) -> Answer:
        known = await self._finder.known(group_id, caller.owner)
        if event_id is not None:
            _check_event_id(event_id, known)
        _check_may_stream(known[0].reply, stream)
        generation = await self._resumed(known, caller, looks_on=looks_on)
        await self._attached(generation, known, event_id)
        return self._resumed_answer(generation, stream=stream, resumed=event_id is not None)

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        self._admission.admit_call(caller)
        rid, reply = kept.record.rid, kept.record.reply
        with self._in_line(rid):
            known = [KnownChoice(rid, reply, kept.done)]
            if kept.done is None:
                known = await self._finder.known(rid, caller.owner)
            generation = await self._resumed(known, caller, kept.record)
            await self._attached(generation, known)
        return self._resumed_answer(
            generation, stream=True, resumed=False, starting_after=starting_after
        )

    async def join(self, group: RequestGroup, caller: Caller, *, stream: bool) -> Answer | Absent:
        """Read a group from its beginning, beside others who may read it. Raises RequestError."""
        with self._in_line(group.group_id):
            return await self._join(group, caller, stream=stream)

    async def _join(self, group: RequestGroup, caller: Caller, *, stream: bool) -> Answer | Absent:
        known = self._known_here(group.group_id)
        if known is None:
            try:
                known = await self._finder.known(group.group_id, caller.owner)
            except NotFound:
                return Absent.UNKNOWN
        if any(choice.done and _is_without_result(choice.done.finish) for choice in known):
            return Absent.OVER
        self._admission.admit_call(caller)
        _check_may_stream(known[0].reply, stream)
        generation = await self._resumed(known, caller)
        if not await self._attached(generation, known):
            self._router.remove(generation)
            return Absent.OVER
        self._router.ask_for(generation)
        return self._resumed_answer(generation, stream=stream, resumed=False)

    @contextmanager
    def _in_line(self, group_id: str) -> Iterator[None]:
        """Until the group is attached to, or its client gets an error."""
        self._line[group_id] += 1
        try:
            yield
        finally:
            self._line[group_id] -= 1
            if not self._line[group_id]:
                del self._line[group_id]

    async def _attached(
        self, generation: Generation, known: Sequence[KnownChoice], event_id: EventId | None = None
    ) -> bool:
        """Attach, then ask for the text: who ends what nobody reads must see that we do.

        False: its requests are being ended, or were, without a result. Raises RequestError.
        """
        joined = Joined()
        try:
            if not generation.looks_on and not all(choice.is_over for choice in known):
                joined = await self._attachments.join_all(generation)
            found = await self._finder.texts(known)
            await self._catch_up(generation, found, event_id)
        except BaseException:
            self._router.remove(generation)
            await self._attachments.undo(generation, joined)
            raise
        return not joined.is_ending and not any(_has_no_result(choice) for choice in found)

    def _known_here(self, group_id: str) -> list[KnownChoice] | None:
        """A running group that is read at this frontend: nobody needs to be asked for it."""
        for generation in self._router.find(group_id):
            if generation.is_stored and not any(s.finish for s in generation.streams):
                age_s = generation.age_s
                return [
                    KnownChoice(s.rid, s.reply, age_s=age_s, is_read_here=True)
                    for s in generation.streams
                ]
        return None

    async def _resumed(
        self,
        known: Sequence[KnownChoice],
        caller: Caller,
        record: StoredResponse | None = None,
        *,
        looks_on: bool = False,
    ) -> Generation:
        """The generation of requests that are in the queue, or have been; it hears their text from
        now on.
        """
        arrived_at = asyncio.get_running_loop().time()
        first = known[0].reply
        view = await self._response_view(first, record)
        token_texts = None
        labels: Sequence[str] = ()
        if first.surface is Surface.CLASSIFY:
            labels = (await self._models.model(first.served_model)).labels
        if needs_token_texts(first) and view is None:
            token_texts = (await self._models.model(first.served_model)).text.token_texts
        budget_s = first.deadline_s or caller.deadline_s
        generation = Generation.of(
            [(choice.rid, choice.reply) for choice in known],
            caller,
            pool=pool_slug(first.served_model),
            arrived_at=arrived_at,
            remaining_s=budget_s - known[0].age_s,
            queue_timeout_s=_left_s(known[0]),
            token_texts=token_texts,
            labels=labels,
        )
        describe_resumed(caller.span, first)
        generation.is_resumed = generation.is_stored = True
        generation.looks_on = looks_on
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
        answer = self._answers.open(
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
        await _wait_until_there(generation, event_id)
        for stream, mark in zip(generation.streams, event_id.marks, strict=True):
            if stream.have < mark.text_len or not stream.skip_to(mark):
                raise ResumeConflict(
                    "The text that this event id describes is not the beginning of this stream.",
                    param="Last-Event-ID",
                )


async def _wait_until_there(generation: Generation, event_id: EventId) -> None:
    """Until each choice has all the text that the client has. Raises RequestError."""
    try:
        async with asyncio.timeout(_CATCH_UP_S):
            while any(
                stream.have < mark.text_len and stream.finish is None
                for stream, mark in zip(generation.streams, event_id.marks, strict=True)
            ):
                await generation.wait()
                generation.take_news()
    except Interrupted as exc:  # this frontend stops
        raise error_of_interrupt(exc.interrupt, generation.group_id) from exc
    except TimeoutError as exc:
        raise ServiceUnavailable(
            "The stream has not yet come to where this event id says.", retry_after_s=2
        ) from exc


def _check_event_id(event_id: EventId, known: Sequence[KnownChoice]) -> None:
    """Raises InvalidRequest, or ResumeConflict where it is of another stream."""
    reply = known[0].reply
    if reply.surface is Surface.RESPONSES:
        raise InvalidRequest(
            "Events of a response have numbers: "
            f"GET /v1/responses/resp_{reply.group_id}?stream=true&starting_after=",
            param="Last-Event-ID",
        )
    if reply.surface in _UNNUMBERED:
        raise InvalidRequest(
            "Events of this API have no ids: without one it is told from its beginning.",
            param="Last-Event-ID",
        )
    if len(event_id.marks) != len(known):
        raise ResumeConflict(
            f"The event id describes {len(event_id.marks)} choices, the stream has {len(known)}.",
            param="Last-Event-ID",
        )


def _check_may_stream(reply: ReplyParams, stream: bool) -> None:
    """Raises InvalidRequest."""
    if stream and reply.surface is Surface.OLLAMA_EMBED:
        raise InvalidRequest(
            "Vectors of /api/embed are told in one piece: ask with stream=false.", param="stream"
        )
    if stream and (reply.num_kept or reply.num_beams):
        name = "top_n" if reply.surface is Surface.RERANK else "best_of"
        name = "use_beam_search" if reply.num_beams else name
        raise InvalidRequest(
            f"The choices of this request are ranked at their end ('{name}'): ask for the whole "
            "answer, with stream=false.",
            param="stream",
        )


def _left_s(choice: KnownChoice) -> float:
    """What is left of a resumed request's time in the queue; 0: it has no bound of its own."""
    if not choice.reply.queue_timeout_s:
        return 0.0
    return max(0.001, choice.reply.queue_timeout_s - choice.age_s)


def _has_no_result(choice: FoundChoice) -> bool:
    finish = None if choice.chunk is None else choice.chunk.finish
    return finish is not None and _is_without_result(finish)


def _is_without_result(finish: Finish) -> bool:
    """Whether it was ended before it had one, so that its key may stand for another try."""
    return finish.reason in (
        FinishReason.CANCEL,
        FinishReason.DEADLINE,
        FinishReason.QUEUE_TIMEOUT,
        FinishReason.UNSERVED,
        FinishReason.WEIGHTS_REPLACED,
        FinishReason.ADAPTER_UNLOADED,
    )
