"""The cluster as a document: objects by name or id, and no nulls, so that changes merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from frontend.cluster.cluster_answer import (
    AdapterView,
    ClusterFigures,
    ClusterTotals,
    ClusterView,
    DetokenizerView,
    FrontendView,
    GpuView,
    ModelView,
    QueueView,
    RequestView,
    ScaleChange,
    SupervisorView,
    WorkerChange,
    WorkerView,
)
from frontend.cluster.request_path_service import hops_view
from frontend.cluster.request_paths import Hop
from frontend.config import ROLE
from frontend.inference.telemetry.recent_requests import RecentRequest
from frontend.jobs.job import Caller
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, PoolEvent, ScaleEvent, WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a frontend can show at one moment."""

    snapshot: ClusterSnapshot
    figures: ClusterFigures  # of the snapshot
    models: Sequence[ModelCard]  # that are listed
    requests: Sequence[RecentRequest]  # of this frontend
    paths: Mapping[str, Sequence[Hop]]  # of them, by rid


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. Tenants see what they share, the workers and the queue, and their own requests."""

    owner: str
    is_operator: bool  # sees machines, and the requests of all

    @classmethod
    def of(cls, caller: Caller) -> Viewer:
        return cls(caller.owner, caller.tenant.is_operator)

    def may_see(self, request: RecentRequest) -> bool:
        return self.is_operator or request.owner == self.owner


def cluster_view(seen: Sight, viewer: Viewer, head: Mapping[str, str]) -> Facts:
    """The document as JSON has it; `head` is what is always the same."""
    snapshot = seen.snapshot
    view = ClusterView(
        version=head["version"],
        frontend=head["frontend"],
        at=round(snapshot.at, 3),
        is_operator=viewer.is_operator,
        models={card.name: _model(card) for card in seen.models},
        workers={
            card.worker: _worker(card, snapshot.tokens_per_s.get(card.worker), viewer)
            for card in snapshot.workers
        },
        queues=_queues(snapshot.queues),
        totals=_totals(snapshot),
        figures=figures_for(seen.figures, viewer),
        events={str(seq): _event(event, viewer) for seq, event in snapshot.events.items()},
        requests={
            request.group_id: _request(request, seen, viewer)
            for request in seen.requests
            if viewer.may_see(request)
        },
        **(_of_operators(snapshot, head) if viewer.is_operator else {}),
    )
    facts: Facts = msgspec.to_builtins(view)
    return facts


def figures_for(figures: ClusterFigures, viewer: Viewer) -> ClusterFigures:
    """The same without what only operators are told."""
    return figures if viewer.is_operator else msgspec.structs.replace(figures, num_fenced=UNSET)


def _of_operators(snapshot: ClusterSnapshot, head: Mapping[str, str]) -> Facts:
    """What tenants are not told of the service."""
    frontends, detokenizers, supervisors = {}, {}, {}
    for card in snapshot.roles:
        started_at = round(card.started_at, 3)
        place: Facts = {"host": card.host, "pid": card.pid, "started_at": started_at}
        if card.role == ROLE:
            frontends[card.id] = FrontendView(**place)
        elif card.role == SUPERVISOR:
            supervisors[card.id] = SupervisorView(**place, pool=card.pool, failure=card.failure)
        else:
            detokenizers[card.id] = DetokenizerView(**place, num_fenced=card.num_fenced)
    return {
        "admin_url": head.get("admin_url", UNSET),
        "frontends": frontends,
        "detokenizers": detokenizers,
        "supervisors": supervisors,
    }


def _model(card: ModelCard) -> ModelView:
    return ModelView(
        pool=card.pool,
        revision=card.revision,
        max_context_len=card.max_context_len,
        created=card.created,
        adapters={
            adapter.name: AdapterView(revision=adapter.revision, rank=adapter.rank)
            for adapter in card.adapters
        },
    )


def _worker(card: WorkerCard, tokens_per_s: float | None, viewer: Viewer) -> WorkerView:
    machine: Facts = {"host": card.host, "pid": card.pid}
    if card.gpu is not None:
        machine["gpu"] = GpuView(**msgspec.structs.asdict(card.gpu))
    return WorkerView(
        model=card.model,
        revision=card.revision,
        state=card.state,
        started_at=round(card.started_at, 3),
        num_running=card.num_running,
        num_waiting=card.num_waiting,
        max_running=card.max_running,
        kv_cache_usage=round(card.kv_cache_usage, 4),
        num_kv_tokens=card.num_kv_tokens,
        num_steps=card.step,
        num_finished=card.work.num_finished,
        num_generated=card.work.num_generated,
        num_redelivered=card.work.num_redelivered,
        num_released=card.work.num_released,
        num_fenced=card.work.num_fenced,
        num_prefix_queries=card.work.num_prefix_queries,
        num_prefix_hits=card.work.num_prefix_hits,
        phase=card.phase or UNSET,
        progress=round(card.progress, 3) if card.phase else UNSET,
        remark=card.remark or UNSET,
        role=UNSET if card.role == "both" else card.role,
        kernel_set=card.kernel_set or UNSET,
        weights=card.weights or UNSET,
        tokens_per_s=UNSET if tokens_per_s is None else round(tokens_per_s, 1),
        **(machine if viewer.is_operator else {}),
    )


def _queues(depths: Iterable[QueueDepth]) -> dict[str, dict[str, QueueView]]:
    """The queues by model and class."""
    queues: dict[str, dict[str, QueueView]] = {}
    for depth in depths:
        queues.setdefault(depth.model, {})[depth.job_class] = QueueView(
            num_waiting=depth.num_waiting,
            num_taken=depth.num_taken,
            oldest_wait_s=depth.oldest_wait_s,
        )
    return queues


def _totals(snapshot: ClusterSnapshot) -> ClusterTotals:
    """The sums over all there are now: who goes takes its counts along."""
    works = [card.work for card in snapshot.workers]
    return ClusterTotals(
        num_redelivered=sum(work.num_redelivered for work in works),
        num_released=sum(work.num_released for work in works),
        num_fenced_writes=sum(card.num_fenced for card in snapshot.roles),
        num_dead=snapshot.num_dead,
    )


def _event(event: PoolEvent, viewer: Viewer) -> WorkerChange | ScaleChange:
    if isinstance(event, ScaleEvent):
        return ScaleChange(**msgspec.structs.asdict(event))
    machine = {"host": event.host or UNSET, "detail": event.detail or UNSET}
    return WorkerChange(
        at=event.at,
        pool=event.pool,
        model=event.model,
        worker=event.worker,
        state=event.state,
        **(machine if viewer.is_operator else {}),
    )


def _request(request: RecentRequest, seen: Sight, viewer: Viewer) -> RequestView:
    is_over = request.status is not None
    return RequestView(
        model=request.model,
        route=request.route,
        arrived_at=round(request.arrived_at, 2),
        is_running=not is_over,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
        paths=[hops_view(seen.paths.get(rid, ())) for rid in request.rids],
        status=UNSET if request.status is None else request.status,
        finish=request.finish if is_over else UNSET,
        ttft_ms=_ms(request.ttft_s),
        e2e_ms=_ms(request.e2e_s),
        tenant=request.tenant if viewer.is_operator else UNSET,
    )


def _ms(seconds: float | None) -> float | UnsetType:
    return UNSET if seconds is None else round(seconds * 1000, 1)
