"""Reads requests that some frontend accepted: again, from a place on, or beside other readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from frontend.answer import Answer
from frontend.answers.event_id import EventId
from frontend.answers.event_writer import public_id
from frontend.attachments import Attachments
from frontend.generation import Generation
from frontend.idempotency.keyed_start import Absent
from frontend.job import Caller
from frontend.model_directory import ModelDirectory
from frontend.open_answers import OpenAnswers
from frontend.reply_router import ReplyRouter
from frontend.responses.store import ResponseStore
from frontend.responses.stored_response import KeptResponse, ResponseView, StoredResponse
from frontend.resuming.stream_finder import FoundChoice, StreamFinder
from frontend.server_span import describe_resumed
from frontend.text_stream import tells_logprobs
from shared.done_chunk import done_chunk
from shared.errors import InvalidRequest, NotFound, ResumeConflict, ServiceUnavailable
from shared.protocol.finish import FinishReason
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.request import RequestGroup
from shared.subjects import pool_slug

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
    ) -> None:
        self._finder = finder
        self._router = router
        self._models = models
        self._attachments = attachments
        self._responses = responses
        self._answers = answers

    async def resume(
        self, group_id: str, event_id: EventId | None, caller: Caller, *, stream: bool
    ) -> Answer:
        """Go on after the event that the client saw last; from the start when it saw none.

        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        found = await self._finder.find(group_id, caller.owner)
        if event_id is not None and found[0].reply.surface is Surface.RESPONSES:
            raise InvalidRequest(
                "Events of a response have numbers: "
                f"GET /v1/responses/resp_{group_id}?stream=true&starting_after=",
                param="Last-Event-ID",
            )
        if event_id is not None and found[0].reply.surface is Surface.MESSAGES:
            raise InvalidRequest(
                "Events of a message have no ids: without one it is told from its beginning.",
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
            await self._attachments.join_all(generation)
        except BaseException:
            self._router.remove(generation)
            raise
        return self._resumed_answer(generation, stream=stream, resumed=event_id is not None)

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        rid, reply = kept.record.rid, kept.record.reply
        if kept.done is not None:
            found = [FoundChoice(rid, reply, done_chunk(kept.done))]
        else:
            found = await self._finder.find(rid, caller.owner)
        generation = await self._resumed(found, caller, kept.record)
        try:
            await self._catch_up(generation, found, None)
            await self._attachments.join_all(generation)
        except BaseException:
            self._router.remove(generation)
            raise
        return self._resumed_answer(
            generation, stream=True, resumed=False, starting_after=starting_after
        )

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
            if not await self._attachments.join_all(generation):
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
            token_texts = (await self._models.model(first.served_model)).text.token_texts
        budget_s = first.deadline_s or caller.deadline_s
        generation = Generation.of(
            [(choice.rid, choice.reply) for choice in found],
            caller,
            pool=pool_slug(first.served_model),
            arrived_at=arrived_at,
            remaining_s=first.created + budget_s - time.time(),
            queue_timeout_s=_left_s(first),
            token_texts=token_texts,
        )
        describe_resumed(caller.span, first)
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


def _check_may_stream(reply: ReplyParams, stream: bool) -> None:
    """Raises InvalidRequest."""
    if stream and (reply.num_kept or reply.num_beams):
        name = "top_n" if reply.surface is Surface.RERANK else "best_of"
        name = "use_beam_search" if reply.num_beams else name
        raise InvalidRequest(
            f"The choices of this request are ranked at their end ('{name}'): ask for the whole "
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
        FinishReason.ADAPTER_UNLOADED,
    )
