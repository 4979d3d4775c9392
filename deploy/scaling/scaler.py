"""Looks at a pool again and again, decides, and lets a fleet of workers follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from deploy.processes.worker_fleet import WorkerFleet
from deploy.scaling.autoscaler import Autoscaler, Decision, ScalePolicy
from deploy.scaling.pool_snapshot import PoolSnapshot
from deploy.scaling.pool_watch import PoolWatch
from deploy.scaling.service_sides import ServiceSides
from shared.broker.kv_bucket import KvBucket
from shared.errors import BrokerError, CasConflict
from shared.liveness.pool_events import PoolEvents
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import ScaleEvent, WorkerRole
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import METRICS_PREFIX

# Of which workers, what was seen, what follows, and whether the number was changed.
Report = Callable[[WorkerRole, PoolSnapshot, Decision, bool], None]
_PREFIX = f"{METRICS_PREFIX}_autoscaler"

log = get_logger(__name__)


class Turn:
    """The right to change a pool, or a role of it: of several scalers one at a time has it.

    Taken before a change, it lasts until the change can be seen by all (`TURN_TTL_S`).
    So two scalers of one pool never answer the same backlog twice: the second one decides anew,
    with the workers of the first one before its eyes. Nobody stands by for somebody else's death.
    """

    def __init__(
        self, bucket: KvBucket, pool: str, scaler_id: str, role: WorkerRole = "both"
    ) -> None:
        self._bucket = bucket
        self._key = pool if role == "both" else f"{pool}.{role}"
        self._scaler_id = scaler_id.encode()

    async def take(self) -> bool:
        """Whether it is ours now. Raises BrokerError."""
        entry = await self._bucket.get(self._key)
        if entry is not None and entry.value != self._scaler_id:
            return False
        try:
            await self._bucket.put_if(self._key, self._scaler_id, entry.revision if entry else 0)
        except CasConflict:
            return False
        return True


class Scaler:
    """The workers of one fleet, for one pool: those of each role follow its own load. While the
    broker is away nothing changes.
    """

    def __init__(
        self,
        sides: ServiceSides,
        card: ModelCard,
        scaler_id: str,
        fleet: WorkerFleet,
        policies: Mapping[WorkerRole, ScalePolicy],
        interval_s: float,
        max_running: int | None,
        report: Report = lambda _role, _seen, _decision, _is_change: None,
    ) -> None:
        self._card = card
        self._scaler_id = scaler_id
        self._fleet = fleet
        self._interval_s = interval_s
        self._report = report
        self._autoscalers = {role: Autoscaler(policy) for role, policy in policies.items()}
        self._sides = sides
        self._watch = PoolWatch(sides, card.pool, max_running, policies)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Until cancelled. Workers run in `tasks`."""
        while True:
            try:
                await self._step(tasks)
            except BrokerError as exc:
                log.debug("pool_not_seen", error=str(exc))
            await asyncio.sleep(self._interval_s)

    async def _step(self, tasks: asyncio.TaskGroup) -> None:
        view = await self._watch.look(self._fleet.roles, self._fleet.leaving_ids)
        for role, autoscaler in self._autoscalers.items():
            seen = view.snapshots[role]
            decision = autoscaler.decide(seen)
            num_wanted = decision.num_workers - seen.num_others
            is_change = num_wanted != self._fleet.size(role) and not view.is_paused
            is_change = is_change and await self._turn(role).take()
            self._report(role, seen, decision, is_change)
            if is_change:
                await self._publish(self._event(role, seen, decision))
                self._fleet.resize(num_wanted, role, view.loads, tasks)

    def _turn(self, role: WorkerRole) -> Turn:
        """Where a service moves, all scalers have the same oldest side."""
        bucket = self._sides.oldest.bucket(self._sides.oldest.subjects.turns_bucket)
        return Turn(bucket, self._card.pool, self._scaler_id, role)

    async def _publish(self, event: ScaleEvent) -> None:
        log.info(
            "scaled",
            role=event.role,
            num_workers=event.num_workers,
            num_wanted=event.num_wanted,
            reason=event.reason,
        )
        for each in self._sides.clusters:
            events = PoolEvents(each.nc, each.subjects, self._card.pool, self._card.name)
            await events.publish(event)

    def _event(self, role: WorkerRole, seen: PoolSnapshot, decision: Decision) -> ScaleEvent:
        load = decision.load
        return ScaleEvent(
            at=time.time(),
            pool=self._card.pool,
            model=self._card.name,
            scaler=self._scaler_id,
            num_workers=seen.num_workers,
            num_wanted=decision.num_workers,
            reason=decision.need.reason,
            need=round(decision.need.num_workers, 2),
            num_ready=seen.num_ready,
            num_waiting=seen.num_waiting,
            num_running=seen.num_running,
            num_waiting_tokens=round(seen.num_waiting * load.tokens_per_request),
            num_running_tokens=round(seen.num_running * load.tokens_per_request),
            oldest_wait_s=round(seen.oldest_wait_s, 3),
            requests_per_s=round(load.requests_per_s, 3),
            worker_tokens_per_s=round(load.worker_tokens_per_s, 1),
            role=role,
        )


class ScalerMetrics:
    """What a scaler shows of its pool, by role, set by each look at it."""

    def __init__(
        self, registry: CollectorRegistry, model_name: str, roles: Iterable[WorkerRole]
    ) -> None:
        def gauge(name: str, text: str) -> Gauge:
            labels = ["model_name", "role"]
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=registry)

        self._wanted = gauge("wanted_workers", "Workers that the pool should have.")
        self._needed = gauge("needed_workers", "The need behind it, without bounds and windows.")
        self._ready = gauge("ready_workers", "Workers that take requests.")
        self._starting = gauge("starting_workers", "Workers that will.")
        self._waiting = gauge("requests_waiting", "Requests that no worker has.")
        self._oldest = gauge("oldest_wait_seconds", "How long the oldest of them has waited.")
        self._changes = Counter(
            f"{_PREFIX}_changes",
            "Decisions that changed the number of workers, by reason.",
            ["model_name", "role", "reason"],
            registry=registry,
        )
        for role in roles:
            for reason in ("requests", "load", "backlog", "oldest request", "idle"):
                self._changes.labels(model_name, role, reason)
        self._model_name = model_name

    def note(
        self, role: WorkerRole, seen: PoolSnapshot, decision: Decision, is_change: bool
    ) -> None:
        for gauge, value in (
            (self._wanted, decision.num_workers),
            (self._needed, decision.need.num_workers),
            (self._ready, seen.num_ready),
            (self._starting, seen.num_starting),
            (self._waiting, seen.num_waiting),
            (self._oldest, seen.oldest_wait_s),
        ):
            gauge.labels(self._model_name, role).set(value)
        if is_change:
            self._changes.labels(self._model_name, role, decision.need.reason).inc()
