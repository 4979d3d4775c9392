"""One request after the other through a worker: claimed, run, logged, acknowledged.

A request's way: `RequestPuller` -> `Intake` -> `Taker` (claim) -> `Runs` -> engine -> `Runs` ->
`TokenLog` -> `Settler` (acknowledge). `HandOver` is for a way that is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from nats.aio.msg import Msg

from shared.errors import BrokerError, ConfigError, ProtocolError
from shared.event_wait import wait_event
from shared.nats_client.connection import round_trip
from shared.nats_client.connection_end import end_subscription
from shared.protocol.codec import decode_control
from shared.protocol.finish import FinishReason
from shared.protocol.notices import Cancel, Fenced
from shared.protocol.role_cards import WorkDone
from shared.telemetry.log import get_logger
from worker.capacity.ack_heartbeat import AckHeartbeat
from worker.engine_link.engine_messages import StepOutput
from worker.held.delivery import Delivery, waited_s
from worker.held.held_request import HeldRequest
from worker.intake.request_puller import RequestPuller
from worker.requests.request_parts import Incarnation, claim_parts, run_parts
from worker.requests.request_tasks import RequestTasks

_MAX_CARD_HASHES = 256  # two KiB a heartbeat

log = get_logger(__name__)


class RequestRunner:
    """All requests of one worker incarnation, from when it takes the first until it leaves."""

    def __init__(self, of: Incarnation) -> None:
        self._worker_id = of.worker_id
        self._cluster = of.cluster
        self._pool = of.model.card.pool
        # Whoever waits for released requests is not looked up by prefix: prompts are for others.
        self._has_affinity = of.config.prefix_affinity and of.config.role != "decode"
        self._pages = of.pages
        self._drain_timeout_s = of.config.drain_timeout_s
        self._engine = of.engine
        self._metrics = of.metrics
        self._tasks = RequestTasks()
        self.parts = run_parts(of, self._tasks)
        self.claims = claim_parts(of, self.parts)
        self._ack_heartbeat = AckHeartbeat(
            self.parts.held_requests,
            self.parts.hang_watch,
            self.parts.token_log,
            self.parts.pause,
            self.parts.acks,
            of.config.ack_wait_s,
            self._on_overdue,
        )
        self._puller = RequestPuller(
            of.cluster.nc,
            of.cluster.subjects,
            self._pool,
            self.parts.capacity.num_credits,
            self.on_delivery,
        )
        self._pulling: asyncio.Task[None] | None = None
        self._num_resent_counted = 0
        self._has_stepped = False  # in this turn of the loop
        self._has_room = False  # since then

    async def run(self) -> None:
        """Pull and run requests until cancelled."""
        subjects = self._cluster.subjects
        async with AsyncExitStack() as subscriptions, self._tasks.opened() as tasks:
            await self._subscribe(subscriptions, subjects.control(self._pool), self._on_control)
            tasks.create_task(self.parts.token_log.run())
            tasks.create_task(self.parts.stream_room.run())
            tasks.create_task(self._ack_heartbeat.run())
            tasks.create_task(self.claims.dead_letters.run())
            tasks.create_task(self.parts.roles.run(self._on_roles))
            if self._has_affinity or self.parts.roles.role == "decode":
                offers = subjects.offer(self._pool, self._worker_id)
                await self._subscribe(subscriptions, offers, self._on_offer)
            if self.parts.peers.server is not None:
                subscriptions.callback(self.parts.peers.server.close)
                question = self.parts.peers.on_key_question
                await self._subscribe(subscriptions, self.parts.peers.key_subject, question)
            if self._has_affinity:
                tasks.create_task(self.claims.prefix_reporter.run())

    async def _subscribe(
        self,
        subscriptions: AsyncExitStack,
        subject: str,
        callback: Callable[[Msg], Awaitable[None]],
    ) -> None:
        subscription = await self._cluster.nc.subscribe(subject, cb=callback)

        async def unsubscribe() -> None:
            await end_subscription(subscription)

        subscriptions.push_async_callback(unsubscribe)

    async def stop_taking(self) -> None:
        """From now on requests only leave."""
        self.parts.capacity.close()
        await self._stop_pulling()

    @property
    def emptied(self) -> asyncio.Event:
        """Set while no request is held."""
        return self.parts.held_requests.empty

    async def hand_over(self, *, crashed: bool = False) -> None:
        """Release what runs, see through what is finished."""
        log.info("handing_over", num_requests=len(self.parts.held_requests))
        await self.parts.capacity.wait_unreserved(self._drain_timeout_s)
        await self.parts.hand_over.release_all(self._drain_timeout_s, crashed=crashed)
        await self.parts.held_requests.wait_empty(self._drain_timeout_s)
        await round_trip(self._cluster.nc, timeout_s=1)  # the last naks are out

    async def empty(self, finish_timeout_s: float) -> None:
        """When it takes nothing: let what runs finish for so long, and hand over the rest.

        Raises ConfigError when it cannot.
        """
        if not await wait_event(self.emptied, finish_timeout_s):
            await self.hand_over()
        if self.num_held:
            raise ConfigError(f"{self.num_held} requests could not be handed over")

    def on_ready(self) -> None:
        """The engine can take requests."""
        ready = self._engine.ready
        self.parts.peers.on_ready("" if ready is None else ready.pages)
        if self._has_affinity and ready is not None and ready.has_prefixes:
            self.parts.prefixes.open(ready.num_kv_tokens, ready.num_pinnable_tokens)
        self._maybe_pull()

    def on_step(self, step: StepOutput) -> None:
        """The engine has made tokens."""
        if self.parts.runs.on_step(step):
            self._has_room = True
        for held in self.claims.decode_hand_over.ripe(step):
            self._tasks.spawn(self.claims.decode_hand_over.maybe_move(held, self._pages()))
        if not self._has_stepped:
            self._has_stepped = True
            asyncio.get_running_loop().call_soon(self._after_steps)

    def _after_steps(self) -> None:
        """Once for all steps of a turn of the loop: a quick engine makes many."""
        self._has_stepped = False
        has_room, self._has_room = self._has_room, False
        self.parts.runs.flush()
        self.parts.pause.update()
        if has_room or self._puller.is_starved:
            self._puller.wake()

    async def on_engine_died(self) -> None:
        """Its requests go back to the queue at once: others may have an engine."""
        self.parts.prefixes.close()
        await self._stop_pulling()
        await self.parts.hand_over.release_all(self._drain_timeout_s, crashed=True)

    def on_reconnect(self) -> None:
        """The broker is back: pulls are forgotten, frames may be lost."""
        self._puller.reset()
        self.parts.token_log.resend()

    def on_delivery(self, delivery: Delivery) -> None:
        """The queue has given us a request."""
        self._tasks.spawn(self._take_in(delivery))

    async def pause(self) -> None:
        """Take nothing more: what is here goes on."""
        self.parts.capacity.is_paused = True
        await self._stop_pulling()

    def unpause(self) -> None:
        self.parts.capacity.is_paused = False
        self._maybe_pull()

    @property
    def num_held(self) -> int:
        return len(self.parts.held_requests)

    @property
    def num_kept(self) -> int:
        """Requests that another worker should decode, and none has room for."""
        if self.parts.roles.role != "prefill":
            return 0
        return sum(held.is_kept and held.is_active for held in self.parts.held_requests)

    @property
    def step_age_s(self) -> float:
        """Seconds since the last step while there is something to do."""
        return self.parts.hang_watch.step_age_s

    def flush_cache(self) -> None:
        """Forget the prefixes that no running request holds."""
        self.parts.prefixes.close()
        self._engine.flush_cache()

    @property
    def recent_prefixes(self) -> list[bytes]:
        """Hashes of the prefixes used last, for the worker card."""
        return self.parts.prefixes.own.recent(_MAX_CARD_HASHES)

    @property
    def work_done(self) -> WorkDone:
        """What the worker card says of work done."""
        self.parts.runs.flush()
        return self.parts.runs.meter.done(self._metrics.requests, self._engine.load)

    def update_metrics(self) -> None:
        self._metrics.engine.last_step_age_s.set(self.parts.hang_watch.step_age_s)
        num_resent = self.parts.token_log.num_resent
        self._metrics.requests.frames_resent.inc(num_resent - self._num_resent_counted)
        self._num_resent_counted = num_resent

    async def _on_roles(self) -> None:
        """Others who take from the queue, or send pages, have come, or are gone."""
        await self.parts.peers.learn(self.parts.roles.others)
        if not self.parts.roles.pulls:
            await self._stop_pulling()
        elif self.parts.roles.role == "decode":
            self._maybe_pull()

    def _maybe_pull(self) -> None:
        capacity = self.parts.capacity
        is_wanted = not (capacity.is_closed or capacity.is_paused) and self.parts.roles.pulls
        if self._pulling is None and is_wanted and self._engine.ready is not None:
            self._pulling = self._tasks.group.create_task(self._puller.run())

    async def _stop_pulling(self) -> None:
        """What has been asked for may still come, and is given back."""
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            await asyncio.wait([pulling])

    async def _take_in(self, delivery: Delivery) -> None:
        try:
            await self.claims.intake.take_in(delivery)
        finally:
            self._puller.wake()

    async def _on_control(self, message: Msg) -> None:
        try:
            notice = decode_control(message.data)
        except ProtocolError as exc:
            self._cluster.malformed.note(message.subject, exc)
            log.warning("notice_unreadable", error=str(exc))
            return
        held = self.parts.held_requests.get(notice.rid)
        if held is None:
            return
        match notice:
            case Cancel():
                self._tasks.spawn(self._end_cancelled(held))
            case Fenced() if notice.worker == self._worker_id and notice.epoch == held.epoch:
                log.info("fenced", rid=held.rid, epoch=held.epoch)
                self.parts.settler.fence(held)

    async def _on_offer(self, message: Msg) -> None:
        self._tasks.spawn(self.claims.offer_handler.answer(message))

    async def _end_cancelled(self, held: HeldRequest) -> None:
        await self.parts.settler.settle_ended(held)
        self._puller.wake()

    def _on_overdue(self, held: HeldRequest) -> None:
        self._tasks.spawn(self._end_overdue(held))

    async def _end_overdue(self, held: HeldRequest) -> None:
        """Nobody ended it at its deadline: its frontend must be gone, if the clock is right."""
        with contextlib.suppress(BrokerError):
            waited = await waited_s(self._cluster, held.request, held.delivery)
            if waited <= held.request.deadline_s:  # another server leads than when it was taken
                held.queued_by = time.monotonic() - waited
                return
            await self.parts.settler.end(held, FinishReason.DEADLINE)
        self._puller.wake()
