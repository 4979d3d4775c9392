"""One request after the other through a worker: claimed, run, logged, acknowledged.

A request's way: `on_delivery` -> `_take` (claim) -> engine -> `on_step` -> token log ->
`_on_finish_confirmed` -> `_settle` (acknowledge). Every other method is for a way that is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from tokenizers import Tokenizer

from shared.cluster import Cluster
from shared.codec import decode, decode_control
from shared.connection import round_trip
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    CasConflict,
    ConfigError,
    JetflockError,
    MalformedMessage,
    ProtocolError,
)
from shared.log import get_logger
from shared.model_catalog import ModelCatalog
from shared.prefix_namespace import prefix_namespace
from shared.protocol import (
    Cancel,
    End,
    Fenced,
    FinishReason,
    GenerateRequest,
    ModelCard,
    Release,
    TokenEntry,
)
from shared.subjects import is_rid
from shared.token_ids import pack_token_ids
from shared.visible_text import TokenizerDecoder, VisibleText
from worker.claimer import Claimer, Lost, Over, Postponed, Taken, TakeResult
from worker.config import WorkerConfig
from worker.credits import CreditPolicy
from worker.delivery import Acknowledger, Delivery
from worker.engine_host import EngineHost
from worker.engine_messages import RunOutput, StepOutput
from worker.held_request import HeldRequest, HoldState
from worker.held_requests import HeldRequests
from worker.keeper import Keeper
from worker.log_history import LogHistory
from worker.metrics import WorkerMetrics
from worker.request_puller import RequestPuller
from worker.token_log import TokenLog

_OTHER_MODEL_DELAY_S = 2.0
_RETRY_DELAY_S = 1.0
_PROMPT_TIMEOUT_S = 10.0
_SETTLE_ATTEMPTS = 5
_SETTLE_PAUSE_S = 0.2  # a broker that has just restarted refuses at once

log = get_logger(__name__)


class RequestRunner:
    """All requests of one worker incarnation.

    Invariant: a request is written to the log only in state RUNNING or FINISHING, and only under
    its own epoch.
    """

    def __init__(
        self,
        config: WorkerConfig,
        cluster: Cluster,
        card: ModelCard,
        worker_id: str,
        tokenizer: Tokenizer,
        engine: EngineHost,
        metrics: WorkerMetrics,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._card = card
        self._worker_id = worker_id
        self._tokenizer = tokenizer
        self._engine = engine
        self._metrics = metrics
        nc, subjects = cluster.nc, cluster.subjects
        self._catalog = ModelCatalog(cluster)
        self._acks = Acknowledger(nc)
        self._claimer = Claimer(cluster, LogHistory(nc, subjects), worker_id, config.ack_wait_s)
        self._token_log = TokenLog(
            nc, subjects, worker_id, self._on_finish_confirmed, window=config.frame_window
        )
        self._puller = RequestPuller(nc, subjects, card.pool, self._num_credits, self.on_delivery)
        self._held_requests = HeldRequests()
        self._keeper = Keeper(
            self._held_requests,
            engine,
            self._token_log,
            self._acks,
            config.ack_wait_s,
            lambda held: self._spawn(self._end_overdue(held)),
        )
        self._credits = CreditPolicy()
        self._run_ids = itertools.count(1)
        self._is_draining = False
        self._tasks: asyncio.TaskGroup | None = None
        self._pulling: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Pull and run requests until cancelled."""
        control = await self._cluster.nc.subscribe(
            self._cluster.subjects.control(self._card.pool), cb=self._on_control
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._token_log.run())
                tasks.create_task(self._keeper.run())
        finally:
            with contextlib.suppress(NatsError):
                await control.unsubscribe()

    async def drain(self) -> None:
        """Stop pulling, hand over what runs, see through what is finished."""
        log.info("draining", num_requests=len(self._held_requests))
        self._is_draining = True
        await self._stop_pulling()
        await self._release_all(crashed=False)
        await self._held_requests.wait_empty(self._config.drain_timeout_s)
        await round_trip(self._cluster.nc, timeout_s=1)  # the last naks are out

    def on_reconnect(self) -> None:
        """The broker is back: pulls are forgotten, frames may be lost."""
        self._puller.reset()
        self._token_log.resend()

    def on_ready(self) -> None:
        assert self._tasks is not None, "run() comes first"
        if self._pulling is None and not self._is_draining:
            self._pulling = self._tasks.create_task(self._puller.run())

    async def on_engine_died(self) -> None:
        """Its requests go back to the queue at once: others may have an engine."""
        await self._stop_pulling()
        await self._release_all(crashed=True)

    async def _stop_pulling(self) -> None:
        """What has been asked for may still come, and is given back."""
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            await asyncio.wait([pulling])

    def update_metrics(self) -> None:
        self._metrics.last_step_age_s.set(self._keeper.step_age_s)
        self._metrics.frames_resent.set(self._token_log.num_resent)

    # A request's way in

    def _num_credits(self) -> int:
        ready = self._engine.ready
        if ready is None or not self._can_run or self._token_log.is_overfull:
            return 0
        return self._credits.num_credits(ready, self._engine.load, self._held_requests)

    def on_delivery(self, delivery: Delivery) -> None:
        self._spawn(self._handle_delivery(delivery))

    async def _handle_delivery(self, delivery: Delivery) -> None:
        if delivery.num_delivered > 1:
            self._metrics.redeliveries.inc()
        try:
            request = self._decode(delivery)
        except ProtocolError as exc:
            await self._refuse(delivery, exc)
            return
        if not self._is_our_model(request):
            await self._leave_to_others(request, delivery)
        elif not self._can_run:
            await self._acks.nak(delivery.ack_subject)
        elif not await self._is_known_run(request, delivery):
            if self._has_slot:
                await self._take(request, delivery)
            else:  # two classes were asked at once: it waits where any worker can take it
                await self._acks.nak(delivery.ack_subject)

    @staticmethod
    def _decode(delivery: Delivery) -> GenerateRequest:
        """Raises ProtocolError, also for what would be a trap further on."""
        request = decode(GenerateRequest, delivery.data)
        if not is_rid(request.rid):
            raise MalformedMessage(f"request id {request.rid!r} is not 32 hex digits")
        if len(request.prompt_ids) % 4:
            raise MalformedMessage(f"a prompt of {len(request.prompt_ids)} bytes")
        return request

    @property
    def _can_run(self) -> bool:
        """A hung engine takes nothing: what comes to it would only wait for the next worker."""
        return self._engine.ready is not None and not self._is_draining and self._keeper.is_alive

    def _is_our_model(self, request: GenerateRequest) -> bool:
        """Another revision or tokenizer could continue with tokens that mean something else."""
        return (request.revision, request.tokenizer_hash) == (
            self._card.revision,
            self._card.tokenizer_hash,
        )

    @property
    def _has_slot(self) -> bool:
        ready = self._engine.ready
        return ready is not None and self._credits.has_slot(ready, self._held_requests)

    async def _leave_to_others(self, request: GenerateRequest, delivery: Delivery) -> None:
        """Nobody may be there to take it: once it has been ended it leaves the queue."""
        try:
            last = await self._cluster.ownership.last(request.rid)
        except BrokerError:
            last = None
        if last is not None and isinstance(last.record, End):
            await self._ack(delivery.ack_subject)
        else:
            await self._acks.nak(delivery.ack_subject, _OTHER_MODEL_DELAY_S)

    async def _refuse(self, delivery: Delivery, error: ProtocolError) -> None:
        """A request that this build cannot read: its client gets an error, not silence."""
        log.error("request_unreadable", rid=delivery.msg_id, error=str(error))
        if is_rid(delivery.msg_id):
            end = End(0, FinishReason.ERROR, by=self._worker_id, message=str(error))
            try:
                await self._cluster.ownership.end(delivery.msg_id, end)
            except BrokerError:
                return  # it comes again
        await self._ack(delivery.ack_subject)

    async def _is_known_run(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """A delivery of a request that we hold already: keep it, unless it is ours no more."""
        held = self._held_requests.get(request.rid)
        if held is None:
            return False
        if held.delivery.request_seq != delivery.request_seq:  # a duplicate of what we run
            await self._acks.nak(delivery.ack_subject, self._config.ack_wait_s)
            return True
        if held.state is HoldState.CLAIMING:
            held.delivery = delivery
            return True
        try:
            is_ours = await self._cluster.ownership.is_held_by(
                held.rid, self._worker_id, held.epoch
            )
        except BrokerError:
            return True
        if not is_ours:
            self._drop(held)
            return False
        held.delivery = delivery
        await self._acks.in_progress(delivery.ack_subject)
        return True

    async def _take(self, request: GenerateRequest, delivery: Delivery) -> None:
        """Claim it; a first delivery starts in the engine while the claim is on its way."""
        held = HeldRequest(request, delivery, next(self._run_ids), self._visible_text(request))
        self._held_requests.add(held)
        self._credits.note(held)
        try:
            is_started = delivery.num_delivered == 1 and not request.prompt_object
            if is_started:
                self._start_run(held, request.prompt_ids)
            result = await self._claimer.take(request, delivery)
            await self._apply(held, result, is_started)
        except (BrokerError, ProtocolError) as exc:
            log.warning("take_failed", rid=held.rid, error=str(exc))
            self._drop(held)
            await self._acks.nak(held.delivery.ack_subject, _RETRY_DELAY_S)
        finally:
            self._puller.wake()

    async def _apply(self, held: HeldRequest, result: TakeResult, is_started: bool) -> None:
        match result:
            case Taken():
                try:
                    prompt_ids = await self._prompt_ids(held.request)
                except ConfigError as exc:
                    await self._end_without_prompt(held, exc)
                else:
                    await self._begin(held, result, prompt_ids, is_started)
            case Over():
                self._drop(held)
                log.debug("not_taken", rid=held.rid, why=result.why)
                await self._ack(held.delivery.ack_subject)
            case Postponed():
                self._drop(held)
                await self._acks.nak(held.delivery.ack_subject, result.delay_s)
            case Lost():
                self._drop(held)

    async def _begin(
        self, held: HeldRequest, taken: Taken, prompt_ids: bytes, is_started: bool
    ) -> None:
        """The claim is stored. What the engine made meanwhile goes to the log now."""
        held.epoch = taken.epoch
        if held.is_ended:
            self._drop(held)
            await self._ack(held.delivery.ack_subject)
            return
        if held.is_revoked or not self._can_run:
            held.num_prefix = held.num_logged = len(taken.prefix)
            self._abort_run(held)
            await self._release(held, crashed=False)
            self._drop(held)  # only now: a drain waits for it
            return
        held.state = HoldState.RUNNING
        self._metrics.requests_taken.inc()
        self._metrics.prompt_tokens.inc(held.request.reply.num_prompt_tokens)
        if taken.prefix:
            self._metrics.requests_resumed.inc()
            if is_started:
                self._abort_run(held)
                held.run_id = next(self._run_ids)
                held.visible = self._visible_text(held.request)
                held.finish = None
                is_started = False
            held.resume_from(taken.prefix)
        if not is_started and held.finish is None:
            self._start_run(held, prompt_ids)
        self._log_new_tokens(held, time.monotonic())
        self._token_log.flush()

    def _start_run(self, held: HeldRequest, prompt_ids: bytes) -> None:
        if not self._held_requests.num_runs:
            self._engine.mark_busy()
        self._held_requests.begin_run(held)
        request = held.request
        self._engine.add(
            held.run_id,
            prompt_ids,
            pack_token_ids(held.tokens),
            request.sampling,
            request.priority,
            prefix_namespace(request.revision, request.adapter, request.cache_salt),
        )

    async def _prompt_ids(self, request: GenerateRequest) -> bytes:
        """Raises ConfigError when the prompt is not in the store, or BrokerUnavailable."""
        if not request.prompt_object:
            return request.prompt_ids
        try:
            async with asyncio.timeout(_PROMPT_TIMEOUT_S):
                return await self._catalog.object(request.prompt_object)
        except (NatsError, TimeoutError) as exc:
            raise BrokerUnavailable(f"cannot fetch the prompt: {exc!r}") from exc

    async def _end_without_prompt(self, held: HeldRequest, error: ConfigError) -> None:
        """It can never run: its client gets an error."""
        log.error("prompt_missing", rid=held.rid, error=str(error))
        end = End(0, FinishReason.ERROR, by=self._worker_id, message="the prompt is lost")
        await self._cluster.ownership.end(held.rid, end)
        self._drop(held)
        await self._ack(held.delivery.ack_subject)

    def _visible_text(self, request: GenerateRequest) -> VisibleText | None:
        if not request.text.stop:
            return None
        return VisibleText(TokenizerDecoder(self._tokenizer, request.text), request.text)

    # A request's way out

    def on_step(self, step: StepOutput) -> None:
        now = time.monotonic()
        num_tokens = 0
        has_room = False
        for output in step.outputs:
            held = self._held_requests.of_run(output.run_id)
            if held is None:
                continue
            self._accept(held, output, now)
            num_tokens += len(output.token_ids)
            has_room = has_room or held.finish is not None
        self._metrics.generation_tokens.inc(num_tokens)
        self._token_log.flush()
        self._engine.set_paused(self._token_log.is_overfull)
        if has_room or self._puller.is_starved:
            self._puller.wake()

    def _accept(self, held: HeldRequest, output: RunOutput, now: float) -> None:
        if held.accept(output.token_ids, output.finish):
            self._engine.abort(held.run_id)
        if held.finish is not None:
            self._held_requests.end_run(held)
        if held.state is HoldState.RUNNING:
            self._log_new_tokens(held, now)

    def _log_new_tokens(self, held: HeldRequest, now: float) -> None:
        entry = held.next_entry()
        if entry is None:
            return
        self._token_log.append(entry)
        if entry.finish is not None:
            held.state = HoldState.FINISHING
        elif held.is_restatement_due(now):
            self._token_log.restate(held.rid, held.epoch, held.restate(now))

    def _on_finish_confirmed(self, entry: TokenEntry, seq: int) -> None:
        held = self._held_requests.get(entry.rid)
        if held is not None and held.epoch == entry.epoch:
            self._spawn(self._settle(held, seq))

    async def _settle(self, held: HeldRequest, finish_seq: int) -> None:
        """The finish is stored at `finish_seq`: if it counts there, the request is done."""
        try:
            for _ in range(_SETTLE_ATTEMPTS):
                try:
                    later = await self._cluster.ownership.first_from(held.rid, held.epoch + 1)
                    if (
                        later is not None
                        and later.seq < finish_seq
                        and not isinstance(later.record, End)
                    ):
                        self._metrics.requests_fenced.inc()
                        return
                    await self._acks.ack(held.delivery.ack_subject)
                    self._metrics.requests_finished.inc()
                    return
                except BrokerError as exc:
                    log.info("settle_retries", rid=held.rid, error=str(exc))
                    await asyncio.sleep(_SETTLE_PAUSE_S)
            # It will be delivered again, and found finished.
        finally:
            self._drop(held)

    # Ways that are cut

    def _abort_run(self, held: HeldRequest) -> None:
        if self._held_requests.end_run(held):
            self._engine.abort(held.run_id)

    def _drop(self, held: HeldRequest) -> None:
        """Forget it: nothing more is written of it, its pages are free."""
        self._abort_run(held)
        self._held_requests.remove(held)

    async def _ack(self, ack_subject: str) -> None:
        """Remove a request that is over; if that fails it comes again, and is found over again."""
        try:
            await self._acks.ack(ack_subject)
        except BrokerError as exc:
            log.info("ack_failed", error=str(exc))

    async def _release(self, held: HeldRequest, *, crashed: bool) -> None:
        """Hand a dropped request back, if it is still ours: it goes on elsewhere at once."""
        release = Release(held.epoch, self._worker_id, held.has_progressed, crashed)
        try:
            if not await self._is_released(held, release):
                return
        except BrokerError as exc:
            log.warning("release_failed", rid=held.rid, error=str(exc))
            return
        self._metrics.requests_released.inc()
        await self._acks.nak(held.delivery.ack_subject)

    async def _is_released(self, held: HeldRequest, release: Release) -> bool:
        """Whether the release is stored, or an `end` is: whoever gets the request next sees it."""
        try:
            await self._cluster.ownership.append(held.rid, release)
        except (CasConflict, BrokerUnavailable):
            last = await self._cluster.ownership.last(held.rid)
            return last is not None and (last.record == release or isinstance(last.record, End))
        return True

    async def _release_all(self, *, crashed: bool) -> None:
        """Stop every run, let the log have what was made, then release.

        What is still being claimed is released when the claim comes back.
        """
        running = [held for held in self._held_requests if held.state is HoldState.RUNNING]
        for held in self._held_requests:
            if held.state is HoldState.CLAIMING:
                held.is_revoked = True
                self._abort_run(held)
        for held in running:
            self._abort_run(held)
        if not await self._token_log.wait_flushed(self._config.drain_timeout_s):
            log.warning("released_before_flushed", num_requests=len(running))
        for held in running:
            self._drop(held)
        await asyncio.gather(*(self._release(held, crashed=crashed) for held in running))

    async def _on_control(self, message: Msg) -> None:
        try:
            notice = decode_control(message.data)
        except ProtocolError as exc:
            log.warning("notice_unreadable", error=str(exc))
            return
        held = self._held_requests.get(notice.rid)
        if held is None:
            return
        match notice:
            case Cancel():
                self._spawn(self._end_cancelled(held))
            case Fenced() if notice.worker == self._worker_id and notice.epoch == held.epoch:
                log.info("fenced", rid=held.rid, epoch=held.epoch)
                self._metrics.requests_fenced.inc()
                self._drop(held)

    async def _end_cancelled(self, held: HeldRequest) -> None:
        """Somebody says the request has an `end`: look, drop it and acknowledge."""
        try:
            last = await self._cluster.ownership.last(held.rid)
        except BrokerError:
            return  # the log tells it at the next delivery
        if last is None or not isinstance(last.record, End):
            return
        if held.state is HoldState.CLAIMING:
            held.is_ended = True  # a claim behind the `end` finds it, one before it does not
            return
        self._drop(held)
        self._puller.wake()
        await self._ack(held.delivery.ack_subject)

    async def _end_overdue(self, held: HeldRequest) -> None:
        """Nobody ended it at its deadline: its frontend must be gone."""
        end = End(0, FinishReason.DEADLINE, by=self._worker_id)
        with contextlib.suppress(BrokerError):
            await self._cluster.ownership.end(held.rid, end)
            await self._end_cancelled(held)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        assert self._tasks is not None, "run() comes first"
        self._tasks.create_task(self._guarded(coroutine))

    @staticmethod
    async def _guarded(coroutine: Coroutine[None, None, None]) -> None:
        """What fails for one request must not end those of the others: it will come again."""
        try:
            await coroutine
        except (JetflockError, NatsError):
            log.exception("request_task_failed")
