"""The worker's I/O process: requests from the queue into the engine, tokens from it into the log.

One request's way: `_on_delivery` -> `_take` (claim) -> engine -> `_on_step` -> token log ->
`_on_finish_confirmed` -> `_settle` (acknowledge). Every other method is for a way that is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Protocol

from nats.aio.msg import Msg
from tokenizers import Tokenizer

from shared.cluster import Cluster
from shared.codec import decode, decode_control
from shared.errors import BrokerError, CasConflict, ConfigError, JetflockError, ProtocolError
from shared.heartbeat import Heartbeat
from shared.log import get_logger
from shared.model_catalog import ModelCatalog
from shared.protocol import (
    Cancel,
    End,
    Fenced,
    FinishReason,
    GenerateRequest,
    ModelCard,
    Release,
    TokenEntry,
    WorkerCard,
    WorkerState,
)
from shared.token_ids import pack_token_ids
from shared.visible_text import TokenizerDecoder, VisibleText
from worker.claimer import Claimer, Lost, Over, Postponed, Taken, TakeResult
from worker.config import WorkerConfig
from worker.credits import CreditPolicy
from worker.delivery import Acknowledger, Delivery
from worker.engine_messages import (
    AbortRequest,
    AddRequest,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineLoad,
    EngineLoading,
    EngineReady,
    RunOutput,
    SetPaused,
    StepOutput,
)
from worker.held_request import HeldRequest, HoldState
from worker.log_history import LogHistory
from worker.metrics import WorkerMetrics
from worker.request_puller import RequestPuller
from worker.token_log import TokenLog

_OTHER_MODEL_DELAY_S = 2.0
_DEADLINE_SLACK_S = 5.0  # the frontend ends a request in time; we only when it is gone
_ENGINE_RESTART_S = 1.0
_SETTLE_ATTEMPTS = 5

log = get_logger(__name__)


class Engine(Protocol):
    """What the worker needs of an engine process."""

    async def start(self) -> None: ...

    def send(self, command: EngineCommand) -> None: ...

    async def stop(self, timeout_s: float) -> int: ...

    def kill(self) -> None: ...


EngineFactory = Callable[[Callable[[EngineEvent], None], Callable[[int], None]], Engine]


class Worker:
    """Holds the requests of one worker incarnation.

    Invariants: a request in `_held` is written to the log only in state RUNNING or FINISHING and
    only under its own epoch; a run in `_by_run` belongs to a held request.
    """

    def __init__(
        self,
        config: WorkerConfig,
        cluster: Cluster,
        card: ModelCard,
        worker_id: str,
        tokenizer: Tokenizer,
        engine_factory: EngineFactory,
        metrics: WorkerMetrics,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._card = card
        self._worker_id = worker_id
        self._tokenizer = tokenizer
        self._engine_factory = engine_factory
        self._metrics = metrics

        subjects = cluster.subjects
        workers = cluster.bucket(subjects.workers_bucket)
        self._catalog = ModelCatalog(cluster)
        self._acks = Acknowledger(cluster.nc)
        self._history = LogHistory(cluster.nc, subjects)
        self._claimer = Claimer(
            cluster.js,
            subjects,
            cluster.ownership,
            self._history,
            workers,
            worker_id,
            config.ack_wait_s,
        )
        self._token_log = TokenLog(
            cluster.nc,
            subjects,
            worker_id,
            self._on_finish_confirmed,
            window=config.frame_window,
        )
        self._puller = RequestPuller(
            cluster.nc, subjects, card.pool, self._num_credits, self._on_delivery
        )
        self._heartbeat = Heartbeat(workers, f"{card.pool}.{worker_id}", self._worker_card)
        self._credits = CreditPolicy()

        self._held: dict[str, HeldRequest] = {}
        self._by_run: dict[int, HeldRequest] = {}
        self._run_ids = itertools.count(1)

        self._state = WorkerState.LOADING
        self._loading = EngineLoading("starting", 0.0)
        self._started_at = time.time()
        self._engine: Engine | None = None
        self._ready: EngineReady | None = None
        self._load: EngineLoad | None = None
        self._step = 0
        self._last_step_at = time.monotonic()
        self._is_paused = False
        self._engine_exited = asyncio.Event()
        self._failure: ConfigError | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._all_settled = asyncio.Event()  # nothing is held
        self._all_settled.set()

    # Life

    async def run(self) -> None:
        """Serve until `stop`; then hand everything over. Raises ConfigError if it cannot start."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            background = [
                tasks.create_task(self._heartbeat.run()),
                tasks.create_task(self._token_log.run()),
                tasks.create_task(self._keep_forever()),
            ]
            control = await self._cluster.nc.subscribe(
                self._cluster.subjects.control(self._card.pool), cb=self._on_control
            )
            engine = tasks.create_task(self._run_engine())
            pulling = tasks.create_task(self._puller.run())
            try:
                await self._stopping.wait()
                self._state = WorkerState.DRAINING
                pulling.cancel()
                await self._drain()
            finally:
                with contextlib.suppress(Exception):
                    await control.unsubscribe()
                for task in (engine, pulling, *background):
                    task.cancel()
                if self._engine is not None:
                    self._engine.kill()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to drain: safe to call from a signal handler, and twice."""
        self._stopping.set()

    async def on_reconnect(self) -> None:
        """The broker is back: pulls are forgotten, frames may be lost."""
        self._puller.reset()
        self._token_log.resend()

    async def _run_engine(self) -> None:
        """Keep an engine running. When one dies, its requests go back to the queue at once."""
        while not self._stopping.is_set():
            self._engine_exited.clear()
            self._engine = self._engine_factory(self._on_engine_event, self._on_engine_exit)
            await self._engine.start()
            await self._engine_exited.wait()
            if self._stopping.is_set() or self._failure is not None:
                self.stop()
                return
            self._metrics.engine_restarts.inc()
            await self._release_all(crashed=True)
            await asyncio.sleep(_ENGINE_RESTART_S)

    def _on_engine_exit(self, returncode: int) -> None:
        if not self._stopping.is_set():
            log.error("engine_exited", returncode=returncode)
            self._state = WorkerState.LOADING
        self._ready = None
        self._load = None
        self._engine_exited.set()

    def _worker_card(self) -> WorkerCard:
        load = self._load
        usage = 1 - load.num_free_tokens / max(1, load.num_kv_tokens) if load else 0.0
        return WorkerCard(
            worker=self._worker_id,
            pool=self._card.pool,
            model=self._card.name,
            revision=self._card.revision,
            state=self._state,
            phase=self._loading.phase if self._state is WorkerState.LOADING else "",
            progress=self._loading.progress,
            num_running=load.num_running if load else 0,
            num_waiting=load.num_waiting if load else 0,
            max_running=self._ready.max_running if self._ready else 0,
            kv_cache_usage=usage,
            step=self._step,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
        )

    # A request's way in

    def _num_credits(self) -> int:
        if self._ready is None or self._stopping.is_set() or self._token_log.is_overfull:
            return 0
        return self._credits.num_credits(self._ready, self._load, self._held.values())

    def _on_delivery(self, delivery: Delivery) -> None:
        self._spawn(self._handle_delivery(delivery))

    async def _handle_delivery(self, delivery: Delivery) -> None:
        if delivery.num_delivered > 1:
            self._metrics.redeliveries.inc()
        try:
            request = decode(GenerateRequest, delivery.data)
        except ProtocolError as exc:
            await self._refuse(delivery, exc)
            return
        if self._ready is None or self._stopping.is_set():
            await self._acks.nak(delivery.ack_subject)
        elif not self._is_our_model(request):
            await self._acks.nak(delivery.ack_subject, _OTHER_MODEL_DELAY_S)
        elif not await self._is_known_run(request, delivery):
            await self._take(request, delivery)

    def _is_our_model(self, request: GenerateRequest) -> bool:
        """Another revision or tokenizer could continue with tokens that mean something else."""
        return (request.revision, request.tokenizer_hash) == (
            self._card.revision,
            self._card.tokenizer_hash,
        )

    async def _refuse(self, delivery: Delivery, error: ProtocolError) -> None:
        """A request that this build cannot read: its client gets an error, not silence."""
        log.error("request_unreadable", rid=delivery.msg_id, error=str(error))
        if delivery.msg_id:
            end = End(0, FinishReason.ERROR, by=self._worker_id, message=str(error))
            try:
                await self._cluster.ownership.end(delivery.msg_id, end)
            except BrokerError:
                return  # it comes again
        await self._ack(delivery.ack_subject)

    async def _is_known_run(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """A delivery of a request that we hold already: keep it, unless it is ours no more."""
        held = self._held.get(request.rid)
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
        self._held[held.rid] = held
        self._all_settled.clear()
        self._credits.note(held)
        try:
            prompt_ids = await self._prompt_ids(request)
            is_started = delivery.num_delivered == 1
            if is_started:
                self._start_run(held, prompt_ids)
            result = await self._claimer.take(request, delivery)
            await self._apply(held, result, prompt_ids, is_started)
        except (BrokerError, ConfigError) as exc:
            log.warning("take_failed", rid=held.rid, error=str(exc))
            self._drop(held)
            with contextlib.suppress(Exception):
                await self._acks.nak(held.delivery.ack_subject, 1.0)
        finally:
            self._puller.wake()

    async def _apply(
        self, held: HeldRequest, result: TakeResult, prompt_ids: bytes, is_started: bool
    ) -> None:
        match result:
            case Taken():
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
        if held.state is not HoldState.CLAIMING or self._ready is None or self._stopping.is_set():
            # The engine died, or we began to drain, while the claim was on its way.
            held.num_prefix = held.num_logged = len(taken.prefix)
            self._drop(held)
            await self._release(held, crashed=False)
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
        self._log_new_tokens(held)
        self._token_log.flush()

    def _start_run(self, held: HeldRequest, prompt_ids: bytes) -> None:
        assert self._engine is not None
        if not self._by_run:
            self._last_step_at = time.monotonic()
        self._by_run[held.run_id] = held
        request = held.request
        self._engine.send(
            AddRequest(
                held.run_id,
                prompt_ids,
                pack_token_ids(held.tokens),
                request.sampling,
                request.priority,
            )
        )

    async def _prompt_ids(self, request: GenerateRequest) -> bytes:
        if not request.prompt_object:
            return request.prompt_ids
        return await self._catalog.object(request.prompt_object)

    def _visible_text(self, request: GenerateRequest) -> VisibleText | None:
        if not request.text.stop:
            return None
        return VisibleText(TokenizerDecoder(self._tokenizer, request.text), request.text)

    # A request's way out

    def _on_engine_event(self, event: EngineEvent) -> None:
        match event:
            case StepOutput():
                self._on_step(event)
            case EngineLoading():
                self._loading = event
            case EngineReady():
                self._ready = event
                self._state = WorkerState.READY
                self._spawn(self._heartbeat.beat())
                self._puller.wake()
                log.info(
                    "engine_ready",
                    max_running=event.max_running,
                    num_kv_tokens=event.num_kv_tokens,
                    worker=self._worker_id,
                )
            case EngineFailed():
                self._failure = ConfigError(event.message)

    def _on_step(self, event: StepOutput) -> None:
        self._step = event.step
        self._load = event.load
        self._last_step_at = time.monotonic()
        for output in event.outputs:
            self._accept(output)
        self._token_log.flush()
        self._maybe_pause()
        self._puller.wake()

    def _accept(self, output: RunOutput) -> None:
        held = self._by_run.get(output.run_id)
        if held is None:  # aborted: the engine had not heard of it yet
            return
        if held.accept(output.token_ids, output.finish):
            assert self._engine is not None
            self._engine.send(AbortRequest(held.run_id))
        if held.finish is not None:
            del self._by_run[held.run_id]
        if held.state is HoldState.RUNNING:
            self._log_new_tokens(held)

    def _log_new_tokens(self, held: HeldRequest) -> None:
        entry = held.next_entry()
        if entry is None:
            return
        self._metrics.generation_tokens.inc(len(entry.token_ids))
        self._token_log.append(entry)
        if entry.finish is not None:
            held.state = HoldState.FINISHING
        elif held.num_logged - held.num_restated >= 512:
            self._maybe_restate(held, time.monotonic())

    def _maybe_restate(self, held: HeldRequest, now: float) -> None:
        if held.is_restatement_due(now):
            self._token_log.restate(held.rid, held.epoch, held.tokens[: held.num_logged])
            held.mark_restated(now)

    def _maybe_pause(self) -> None:
        """The engine does not wait for the broker, but it does not outrun it for ever either."""
        if self._is_paused != self._token_log.is_overfull and self._engine is not None:
            self._is_paused = self._token_log.is_overfull
            self._engine.send(SetPaused(self._is_paused))

    def _on_finish_confirmed(self, entry: TokenEntry, seq: int) -> None:
        held = self._held.get(entry.rid)
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
            # It will be delivered again, and found finished.
        finally:
            self._drop(held)

    # Ways that are cut

    def _abort_run(self, held: HeldRequest) -> None:
        if self._by_run.pop(held.run_id, None) is not None and self._engine is not None:
            self._engine.send(AbortRequest(held.run_id))

    def _drop(self, held: HeldRequest) -> None:
        """Forget it: nothing more is written of it, its pages are free."""
        held.state = HoldState.DROPPED
        self._abort_run(held)
        if self._held.get(held.rid) is held:
            del self._held[held.rid]
        if not self._held:
            self._all_settled.set()

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
            await self._cluster.ownership.append(held.rid, release)
        except CasConflict:
            return
        except BrokerError as exc:
            log.warning("release_failed", rid=held.rid, error=str(exc))
            return
        self._metrics.requests_released.inc()
        await self._acks.nak(held.delivery.ack_subject)

    async def _release_all(self, *, crashed: bool) -> None:
        """Stop every run, let the log have what was made, then release.

        Requests that are still being claimed see their state when the claim comes back.
        """
        running = [held for held in self._held.values() if held.state is HoldState.RUNNING]
        for held in list(self._held.values()):
            if held.state is HoldState.CLAIMING:
                self._drop(held)
        for held in running:
            self._abort_run(held)
        if not await self._token_log.wait_flushed(self._config.drain_timeout_s):
            log.warning("released_before_flushed", num_requests=len(running))
        for held in running:
            self._drop(held)
        await asyncio.gather(*(self._release(held, crashed=crashed) for held in running))

    async def _drain(self) -> None:
        """SIGTERM: hand over what runs, see through what is finished."""
        log.info("draining", num_requests=len(self._held))
        await self._heartbeat.beat()
        await self._release_all(crashed=False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_settled.wait(), self._config.drain_timeout_s)
        await self._cluster.nc.flush(timeout=1)

    async def _on_control(self, message: Msg) -> None:
        try:
            notice = decode_control(message.data)
        except ProtocolError as exc:
            log.warning("notice_unreadable", error=str(exc))
            return
        held = self._held.get(notice.rid)
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
            return  # the claim behind the `end` finds it
        self._drop(held)
        self._puller.wake()
        await self._ack(held.delivery.ack_subject)

    # Keeping what is held

    async def _keep_forever(self) -> None:
        interval_s = self._config.ack_wait_s / 4
        while True:
            await asyncio.sleep(min(1.0, interval_s))
            self._update_metrics()
            if not self._is_alive():
                log.error("engine_hangs", last_step_s=time.monotonic() - self._last_step_at)
                continue
            try:
                await self._keep(interval_s)
            except (JetflockError, OSError) as exc:
                log.warning("keep_failed", error=repr(exc))

    def _is_alive(self) -> bool:
        """A hung engine, or one whose frames are not stored, must lose its work."""
        limit_s = self._config.ack_wait_s / 2
        if self._token_log.stalled_s > limit_s:
            return False
        return not self._by_run or self._is_paused or self._step_age_s <= limit_s

    @property
    def _step_age_s(self) -> float:
        return time.monotonic() - self._last_step_at if self._by_run else 0.0

    async def _keep(self, interval_s: float) -> None:
        now = time.monotonic()
        for held in list(self._held.values()):
            if now - held.kept_at >= interval_s:
                held.kept_at = now
                await self._acks.in_progress(held.delivery.ack_subject)
            if held.state is HoldState.RUNNING:
                self._maybe_restate(held, now)
                if self._is_overdue(held):
                    self._spawn(self._end_overdue(held))
        self._token_log.flush()

    def _is_overdue(self, held: HeldRequest) -> bool:
        age_s = time.time() - held.delivery.queued_at.timestamp()
        return age_s > held.request.deadline_s + _DEADLINE_SLACK_S

    async def _end_overdue(self, held: HeldRequest) -> None:
        """Nobody ended it at its deadline: its frontend must be gone."""
        end = End(0, FinishReason.DEADLINE, by=self._worker_id)
        with contextlib.suppress(BrokerError):
            await self._cluster.ownership.end(held.rid, end)
            await self._end_cancelled(held)

    def _update_metrics(self) -> None:
        card = self._worker_card()
        self._metrics.num_running.set(card.num_running)
        self._metrics.num_waiting.set(card.num_waiting)
        self._metrics.kv_cache_usage.set(card.kv_cache_usage)
        self._metrics.last_step_age_s.set(self._step_age_s)
        self._metrics.frames_resent.set(self._token_log.num_resent)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        assert self._tasks is not None
        self._tasks.create_task(coroutine)
