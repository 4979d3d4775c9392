"""Ends requests: their client is gone, their deadline has passed, or somebody asked for it; and
looks when it is time to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from frontend.inference.answers.attachments import AnyReply, Attachments
from frontend.metrics import AnswerMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.streams.alarms import TICK_S
from frontend.streams.generation import Generation, Interrupt
from frontend.streams.reply_router import ReplyRouter
from shared.admin.request_end import end_request, end_unclaimed
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.prompt_object import prompt_object
from shared.protocol.reply import ReplyParams, SealedReply
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import seal
from shared.telemetry.log import get_logger

_RETRY_S = 1.0
_LAST_WORD_S = 15.0  # after its deadline, for the finish of a request that nobody reads
_MAX_TRY_S = 300.0  # how long we try to end a request while NATS is away
_MAX_AT_ONCE = 256  # thousands of clients may leave together, and each costs several answers

NO_RESULT_AFTER_S = 15.0  # after the deadline: then even a new detokenizer should have spoken

log = get_logger(__name__)


class Terminator:
    """The only part of a frontend that writes `end`. Its work outlives the connection it is for."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: ModelCatalog,
        router: ReplyRouter,
        attachments: Attachments,
        metrics: AnswerMetrics,
        frontend_id: str,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._router = router
        self._metrics = metrics
        self._frontend_id = frontend_id
        self._attachments = attachments
        self._ending = asyncio.Semaphore(_MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Give work that is under way a moment; requests in their grace period run on."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()

    def client_gone(self, generation: Generation) -> None:
        """End it after its grace period, unless it finishes or is read elsewhere by then."""
        self._spawn(self._end_after_grace(generation))

    def let_run(self, generation: Generation) -> None:
        """Nobody reads it, and it goes on: until it ends it counts for its tenant here."""
        self._spawn(self._remove_when_finished(generation))

    def expire(self, generation: Generation) -> None:
        """The deadline has passed. The detokenizer will say so to whoever reads the stream."""
        generation.is_expired = True
        self._spawn(self._give_up(generation, FinishReason.DEADLINE))

    def end_unclaimed(
        self, generation: Generation, reason: FinishReason, message: str | None = None
    ) -> None:
        """It waits too long, or in vain: those requests end that no worker has claimed so far."""
        for stream in generation.streams:
            if stream.finish is None and not stream.position:
                end = End(
                    prev=0,
                    reason=reason,
                    by=self._frontend_id,
                    message=message,
                    reply=seal(stream.reply),
                )
                self._spawn(self._end_unclaimed(stream.rid, generation.pool, end))

    def end_later(self, requests: Iterable[GenerateRequest], reason: FinishReason) -> None:
        """End requests that were perhaps accepted, and are not wanted."""
        for request in requests:
            self._spawn(self._end_with_retries(request.rid, request.pool, request.reply, reason))

    async def end(self, rid: str, pool: str, reply: AnyReply | None, reason: FinishReason) -> bool:
        """Write `end` and tell the workers. False when it had ended before.

        Raises BrokerError.
        """
        end = End(prev=0, reason=reason, by=self._frontend_id, reply=_sealed(reply))
        is_new = await end_request(self._cluster, rid, pool, end)
        if is_new:
            self._note_ended(rid, reply, reason)
        return is_new

    async def _end_unclaimed(self, rid: str, pool: str, end: End) -> None:
        reason = end.reason
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _MAX_TRY_S
        may_be_stored = False
        while loop.time() < give_up_at:
            try:
                async with self._ending:
                    await end_unclaimed(self._cluster, rid, pool, end, may_be_stored=may_be_stored)
            except CasConflict:
                return  # claimed, or ended by somebody else
            except BrokerError as exc:
                may_be_stored = True
                log.warning("request_not_ended", rid=rid, reason=reason.value, error=str(exc))
                await asyncio.sleep(_RETRY_S)
            else:
                self._note_ended(rid, end.reply, reason)
                return

    def _note_ended(self, rid: str, reply: AnyReply | None, reason: FinishReason) -> None:
        if reply is not None:
            self.delete_prompt_later(rid, reply)
        self._metrics.ended.labels(reason.value).inc()
        log.info("request_ended", rid=rid, reason=reason.value)

    def delete_prompt_later(self, rid: str, reply: AnyReply) -> None:
        """Deletes the prompt of a request that has ended; does nothing for one that travelled
        inline.
        """
        if name := prompt_object(rid, reply.num_prompt_tokens, has_images=reply.has_images):
            self._spawn(self._delete_object(name))

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("terminator_failed", exc_info=error)

    async def _end_after_grace(self, generation: Generation) -> None:
        try:
            if generation.grace_s > 0:
                await _finished_within(generation, generation.grace_s)
            if not generation.is_finished:
                await self._give_up(generation, FinishReason.CANCEL)
            for stream in generation.streams:
                if stream.finish is not None:
                    self.delete_prompt_later(stream.rid, stream.reply)
        finally:
            self._router.remove(generation)

    async def _remove_when_finished(self, generation: Generation) -> None:
        remaining_s = generation.deadline_at - asyncio.get_running_loop().time()
        try:
            await _finished_within(generation, max(0.0, remaining_s) + _LAST_WORD_S)
        finally:
            self._router.remove(generation)

    async def _delete_object(self, name: str) -> None:
        """A failure leaves rubbish, nothing worse."""
        with contextlib.suppress(BrokerError):
            await self._catalog.erase_object(name)

    async def _give_up(self, generation: Generation, reason: FinishReason) -> None:
        await asyncio.gather(
            *(
                self._give_up_one(generation, stream.rid, stream.reply, reason)
                for stream in generation.streams
                if stream.finish is None
            )
        )

    async def _give_up_one(
        self, generation: Generation, rid: str, reply: AnyReply, reason: FinishReason
    ) -> None:
        await self._end_with_retries(rid, generation.pool, reply, reason, generation)

    def _is_read_here(self, rid: str, but_by: Generation | None) -> bool:
        """Whether another client of this frontend reads the request."""
        return any(
            other is not but_by and other.is_watched and not other.looks_on
            for other in self._router.readers(rid)
        )

    async def _end_with_retries(
        self,
        rid: str,
        pool: str,
        reply: AnyReply,
        reason: FinishReason,
        generation: Generation | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _MAX_TRY_S
        while True:
            try:
                async with self._ending:
                    if await self._may_end(rid, reply, reason, generation):
                        await self.end(rid, pool, reply, reason)
            except CasConflict:
                continue  # somebody joined or left just now
            except BrokerError as exc:
                log.warning("request_not_ended", rid=rid, reason=reason.value, error=str(exc))
                if loop.time() > give_up_at:
                    return
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _may_end(
        self, rid: str, reply: AnyReply, reason: FinishReason, generation: Generation | None
    ) -> bool:
        """Whether nobody else reads it. Raises BrokerError."""
        if reason is FinishReason.DEADLINE and (reply.is_shared or not reply.frontend_id):
            return True  # all its readers have the same
        if self._is_read_here(rid, generation):
            return False
        return await self._attachments.leave(rid, reply)


def _sealed(reply: AnyReply | None) -> SealedReply | None:
    return seal(reply) if isinstance(reply, ReplyParams) else reply


async def _finished_within(generation: Generation, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not generation.is_finished:
                await generation.wait_news()


class StreamWatch:
    """Looks after each generation when it is time: deadlines, hope, signs of life, results.

    One timer serves all, so that a token costs none.
    """

    def __init__(self, router: ReplyRouter, terminator: Terminator, models: ModelDirectory) -> None:
        self._router = router
        self._terminator = terminator
        self._models = models

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._router.in_use.wait()
            await asyncio.sleep(TICK_S)
            now = loop.time()
            for generation in self._router.to_look_after.take_due(now):
                self._router.to_look_after.set(generation, self._look_after(generation, now))
            for pool in list(self._router.pools):
                if why := self._models.hopeless(pool):
                    self._give_up(pool, why)

    def _look_after(self, generation: Generation, now: float) -> float:
        """Returns when to do so again."""
        if now >= generation.queue_timeout_at and not generation.looks_on:
            generation.queue_timeout_at = float("inf")
            self._terminator.end_unclaimed(generation, FinishReason.QUEUE_TIMEOUT)
        if not generation.is_expired and now >= generation.deadline_at:
            if generation.looks_on:
                generation.is_expired = True
            elif not generation.is_finished:
                self._terminator.expire(generation)
        elif now >= generation.deadline_at + NO_RESULT_AFTER_S:
            generation.cut(Interrupt.NO_RESULT)
        times = [generation.queue_timeout_at] if not generation.looks_on else []
        times += [generation.deadline_at, generation.deadline_at + NO_RESULT_AFTER_S]
        if generation.keepalive_s:
            last_sent_at = max(generation.last_sent_at, generation.timings.last_text_at)
            if now - last_sent_at >= generation.keepalive_s:
                generation.last_sent_at = last_sent_at = now
                generation.keepalive()
            times.append(last_sent_at + generation.keepalive_s)
        return min((at for at in times if at > now), default=float("inf"))

    def _give_up(self, pool: str, why: str) -> None:
        """Whoever waits is told. What nobody waits for is kept until a worker comes."""
        for generation in self._router.generations:
            if generation.pool != pool or generation.is_hopeless:
                continue
            is_alone = generation.is_detached or generation.looks_on
            if generation.is_watched and generation.is_stored and not is_alone:
                generation.is_hopeless = True
                self._terminator.end_unclaimed(generation, FinishReason.UNSERVED, why)
