"""One request after the other through a worker: claimed, run, logged, acknowledged.

A request's way: `RequestPuller` -> `Intake` -> `Taker` (claim) -> `Runs` -> engine -> `Runs` ->
`TokenLog` -> `Settler` (acknowledge). `HandOver` is for a way that is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from tokenizers import Tokenizer

from shared.admin.dead_requests import DeadRequests
from shared.broker.told_subjects import ToldSubjects
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, JetflockError, ProtocolError
from shared.liveness.heartbeat import Writability
from shared.liveness.log_watch import LogWatch
from shared.nats_client.connection import round_trip
from shared.nats_client.connection_end import end_subscription
from shared.protocol.codec import decode_control
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import TokenEntry
from shared.protocol.model_cards import ModelCard
from shared.protocol.notices import Cancel, Fenced
from shared.protocol.role_cards import WorkDone
from shared.storage.stream_room import StreamRoom
from shared.telemetry.log import get_logger
from shared.telemetry.tracing import Tracer
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.affinity.prefix_reporter import PrefixReporter
from worker.capacity.ack_heartbeat import AckHeartbeat
from worker.capacity.capacity import Capacity
from worker.capacity.hang_watch import HangWatch
from worker.claims.claimer import Claimer
from worker.claims.log_history import LogHistory
from worker.claims.overdue import waited_s
from worker.claims.quarantine import Quarantine
from worker.claims.taker import Taker
from worker.config import WorkerConfig
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_messages import StepOutput
from worker.held.delivery import Acknowledger, Delivery
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.held.run_trace import RunTraces
from worker.intake.intake import Intake
from worker.intake.offer_handler import OfferHandler
from worker.intake.offer_maker import OfferMaker
from worker.intake.request_puller import RequestPuller
from worker.runs.engine_pause import EnginePause
from worker.runs.runs import Runs
from worker.runs.token_log import TokenLog
from worker.settlement.dead_letters import DeadLetters
from worker.settlement.hand_over import HandOver
from worker.settlement.settler import Settler
from worker.telemetry.worker_metrics import WorkerMetrics
from worker.weights.adapters import Adapters
from worker.weights.served_weights import ServedWeights

_LOOK_S = 0.5  # at the streams that every request writes to
_MAX_CARD_HASHES = 256  # two KiB a heartbeat

log = get_logger(__name__)


class RequestRunner:
    """All requests of one worker incarnation: joins those who care for them, and owns the tasks."""

    def __init__(
        self,
        config: WorkerConfig,
        cluster: Cluster,
        card: ModelCard,
        weights: ServedWeights,
        adapters: Adapters,
        worker_id: str,
        tokenizer: Tokenizer,
        engine: EngineHost,
        metrics: WorkerMetrics,
        heartbeats: Writability,
        tracer: Tracer,
    ) -> None:
        nc, subjects, ownership = cluster.nc, cluster.subjects, cluster.ownership
        self._drain_timeout_s = config.drain_timeout_s
        self._nc = nc
        self._cluster = cluster
        self._control_subject = subjects.control(card.pool)
        self._offer_subject = subjects.offer(card.pool, worker_id)
        self._has_affinity = config.prefix_affinity
        self._engine = engine
        self._worker_id = worker_id
        self._metrics = metrics
        self._prefixes = PoolPrefixes(weights)
        self._held_requests = HeldRequests()
        self.hang_watch = HangWatch(
            engine, self._held_requests, config.hang_timeout_s, config.max_step_s
        )
        self._acks = acks = Acknowledger(nc)
        catalog = ModelCatalog(cluster)
        self._token_log = TokenLog(
            nc, subjects, worker_id, self._on_finish_confirmed, window=config.frame_window
        )
        self.log_watch = LogWatch(cluster, lambda: self._token_log.last_confirmed)
        self._stream_room = StreamRoom(
            cluster.js, (subjects.tokens_stream, subjects.results_stream), _LOOK_S
        )
        pause = EnginePause(self._token_log, self._stream_room)
        self._runs = Runs(
            self._held_requests, engine, self._token_log, pause, tokenizer, self._prefixes, metrics
        )
        self._settler = Settler(worker_id, self._runs, ownership, acks, catalog, metrics)
        self._hand_over = HandOver(
            worker_id, self._held_requests, self._runs, self._token_log, ownership, acks, metrics
        )
        self._ack_heartbeat = AckHeartbeat(
            self._held_requests,
            engine,
            self.hang_watch,
            self._token_log,
            pause,
            acks,
            config.ack_wait_s,
            lambda held: self._spawn(self._end_overdue(held)),
        )
        self._capacity = Capacity(
            engine, self._held_requests, pause, self._ack_heartbeat, self.hang_watch
        )
        self._dead_letters = DeadLetters(
            DeadRequests(cluster), config.dead_ttl_s, self._settler, metrics
        )
        self._taker = Taker(
            Claimer(
                cluster,
                LogHistory(cluster),
                worker_id,
                weights,
                adapters,
                heartbeats,
                config.ack_wait_s,
                config.revision_grace_s,
            ),
            adapters,
            catalog,
            acks,
            self._held_requests,
            self._capacity,
            self._runs,
            self._hand_over,
            self._settler,
            Quarantine(
                self._held_requests,
                self._capacity,
                self._hand_over,
                self._token_log,
                metrics,
                config.drain_timeout_s,
            ),
            self._dead_letters,
            RunTraces(tracer, worker_id),
            metrics,
        )
        self._intake = Intake(
            worker_id,
            card,
            cluster,
            acks,
            self._held_requests,
            self._capacity,
            self._runs,
            self._taker,
            self._prefixes,
            OfferMaker(nc, subjects, card.pool, self._prefixes, self._capacity, metrics),
            metrics,
            duplicate_delay_s=config.ack_wait_s,
        )
        self._offer_handler = OfferHandler(
            self._intake,
            self._capacity,
            self._prefixes,
            metrics,
            cluster.malformed,
            ToldSubjects(subjects),
        )
        self._prefix_reporter = PrefixReporter(cluster, card.pool, worker_id, self._prefixes)
        self._puller = RequestPuller(
            nc, subjects, card.pool, self._capacity.num_credits, self.on_delivery
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._num_resent_told = 0

    async def run(self) -> None:
        """Pull and run requests until cancelled."""
        async with AsyncExitStack() as subscriptions, asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await self._subscribe(subscriptions, self._control_subject, self._on_control)
            tasks.create_task(self._token_log.run())
            tasks.create_task(self._stream_room.run())
            tasks.create_task(self._ack_heartbeat.run())
            tasks.create_task(self._dead_letters.run())
            if self._has_affinity:
                await self._subscribe(subscriptions, self._offer_subject, self._on_offer)
                tasks.create_task(self._prefix_reporter.run())

    async def _subscribe(
        self,
        subscriptions: AsyncExitStack,
        subject: str,
        callback: Callable[[Msg], Awaitable[None]],
    ) -> None:
        subscription = await self._nc.subscribe(subject, cb=callback)

        async def unsubscribe() -> None:
            await end_subscription(subscription)

        subscriptions.push_async_callback(unsubscribe)

    async def stop_taking(self) -> None:
        """From now on requests only leave."""
        self._capacity.close()
        await self._stop_pulling()

    @property
    def emptied(self) -> asyncio.Event:
        """Set while no request is held."""
        return self._held_requests.empty

    async def hand_over(self, *, crashed: bool = False) -> None:
        """Release what runs, see through what is finished."""
        log.info("handing_over", num_requests=len(self._held_requests))
        await self._capacity.wait_unreserved(self._drain_timeout_s)
        await self._hand_over.release_all(self._drain_timeout_s, crashed=crashed)
        await self._held_requests.wait_empty(self._drain_timeout_s)
        await round_trip(self._nc, timeout_s=1)  # the last naks are out

    def on_ready(self) -> None:
        """The engine can take requests."""
        assert self._tasks is not None, "run() comes first"
        if self._has_affinity and self._engine.ready is not None:
            ready = self._engine.ready
            self._prefixes.open(ready.num_kv_tokens, ready.num_pinnable_tokens)
        self._maybe_pull()

    def on_step(self, step: StepOutput) -> None:
        """The engine has made tokens."""
        has_room = self._runs.on_step(step)
        if has_room or self._puller.is_starved:
            self._puller.wake()

    async def on_engine_died(self) -> None:
        """Its requests go back to the queue at once: others may have an engine."""
        self._prefixes.close()
        await self._stop_pulling()
        await self._hand_over.release_all(self._drain_timeout_s, crashed=True)

    def on_reconnect(self) -> None:
        """The broker is back: pulls are forgotten, frames may be lost."""
        self._puller.reset()
        self._token_log.resend()

    def on_delivery(self, delivery: Delivery) -> None:
        """The queue has given us a request."""
        self._spawn(self._take_in(delivery))

    async def pause(self) -> None:
        """Take nothing more: what is here goes on."""
        self._capacity.is_paused = True
        await self._stop_pulling()

    def unpause(self) -> None:
        self._capacity.is_paused = False
        self._maybe_pull()

    @property
    def num_held(self) -> int:
        return len(self._held_requests)

    @property
    def step_age_s(self) -> float:
        """Seconds since the last step while there is something to do."""
        return self.hang_watch.step_age_s

    def flush_cache(self) -> None:
        """Forget the prefixes that no running request holds."""
        self._prefixes.close()
        self._engine.flush_cache()

    @property
    def recent_prefixes(self) -> list[bytes]:
        """Hashes of the prefixes used last, for the worker card."""
        return self._prefixes.own.recent(_MAX_CARD_HASHES)

    @property
    def work_done(self) -> WorkDone:
        """For the worker card."""
        return self._runs.meter.done(self._metrics, self._engine.load)

    def update_metrics(self) -> None:
        self._metrics.last_step_age_s.set(self.hang_watch.step_age_s)
        num_resent = self._token_log.num_resent
        self._metrics.frames_resent.inc(num_resent - self._num_resent_told)
        self._num_resent_told = num_resent
        if self._engine.load is not None:
            self._metrics.num_pinned_tokens.set(self._engine.load.num_pinned_tokens)

    def _maybe_pull(self) -> None:
        is_wanted = not self._capacity.is_closed and not self._capacity.is_paused
        if self._pulling is None and is_wanted and self._engine.ready is not None:
            assert self._tasks is not None, "run() comes first"
            self._pulling = self._tasks.create_task(self._puller.run())

    async def _stop_pulling(self) -> None:
        """What has been asked for may still come, and is given back."""
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            await asyncio.wait([pulling])

    async def _take_in(self, delivery: Delivery) -> None:
        try:
            await self._intake.take_in(delivery)
        finally:
            self._puller.wake()

    def _on_finish_confirmed(self, entry: TokenEntry, seq: int) -> None:
        held = self._held_requests.get(entry.rid)
        if held is not None and held.epoch == entry.epoch:
            self._spawn(self._settler.settle(held, seq))

    async def _on_control(self, message: Msg) -> None:
        try:
            notice = decode_control(message.data)
        except ProtocolError as exc:
            self._cluster.malformed.note(message.subject, exc)
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
                self._runs.drop(held)

    async def _on_offer(self, message: Msg) -> None:
        self._spawn(self._offer_handler.answer(message))

    async def _end_cancelled(self, held: HeldRequest) -> None:
        await self._settler.settle_ended(held)
        self._puller.wake()

    async def _end_overdue(self, held: HeldRequest) -> None:
        """Nobody ended it at its deadline: its frontend must be gone, if the clock is right."""
        with contextlib.suppress(BrokerError):
            waited = await waited_s(self._cluster, held.request, held.delivery)
            if waited <= held.request.deadline_s:  # another server leads than when it was taken
                held.queued_by = time.monotonic() - waited
                return
            await self._settler.end(held, FinishReason.DEADLINE)
        self._puller.wake()

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
