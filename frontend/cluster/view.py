"""The cluster as JSON: objects by name or id, and no nulls, so that changes merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.cluster.request_path_service import hops_view
from frontend.cluster.request_paths import Hop
from frontend.frontend_role import ROLE
from frontend.inference.telemetry.recent_requests import RecentRequest
from frontend.jobs.job import Caller
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, PoolEvent, RoleCard, ScaleEvent, WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth

Facts = dict[str, Any]

_OF_OPERATORS = ("host", "pid", "detail")  # of a worker, a role, an event


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a frontend can show at one moment."""

    snapshot: ClusterSnapshot
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


def cluster_view(seen: Sight, viewer: Viewer, head: Facts) -> Facts:
    """`head` is what is always the same."""
    snapshot = seen.snapshot
    view = {
        **head,
        "at": round(snapshot.at, 3),
        "is_operator": viewer.is_operator,
        "models": {card.name: _model(card) for card in seen.models},
        "workers": {
            card.worker: _worker(card, snapshot.tokens_per_s.get(card.worker), viewer)
            for card in snapshot.workers
        },
        "queues": _queues(snapshot.queues),
        "totals": _totals(snapshot),
        "events": {str(seq): _event(event, viewer) for seq, event in snapshot.events.items()},
        "requests": {
            request.group_id: _request(request, seen, viewer)
            for request in seen.requests
            if viewer.may_see(request)
        },
    }
    if viewer.is_operator:
        view["frontends"] = _roles(card for card in snapshot.roles if card.role == ROLE)
        view["detokenizers"] = _roles(
            card for card in snapshot.roles if card.role not in (ROLE, SUPERVISOR)
        )
        view["supervisors"] = _roles(card for card in snapshot.roles if card.role == SUPERVISOR)
    else:
        view.pop("admin_url", None)
    return view


def _model(card: ModelCard) -> Facts:
    return {
        "pool": card.pool,
        "revision": card.revision,
        "max_context_len": card.max_context_len,
        "created": card.created,
        "adapters": {
            adapter.name: {"revision": adapter.revision, "rank": adapter.rank}
            for adapter in card.adapters
        },
    }


def _worker(card: WorkerCard, tokens_per_s: float | None, viewer: Viewer) -> Facts:
    facts: Facts = {
        "model": card.model,
        "revision": card.revision,
        "state": card.state.value,
        "started_at": round(card.started_at, 3),
        "num_running": card.num_running,
        "num_waiting": card.num_waiting,
        "max_running": card.max_running,
        "kv_cache_usage": round(card.kv_cache_usage, 4),
        "num_kv_tokens": card.num_kv_tokens,
        "num_steps": card.step,
        "num_finished": card.work.num_finished,
        "num_generated": card.work.num_generated,
        "num_redelivered": card.work.num_redelivered,
        "num_released": card.work.num_released,
        "num_fenced": card.work.num_fenced,
        "num_prefix_queries": card.work.num_prefix_queries,
        "num_prefix_hits": card.work.num_prefix_hits,
    }
    if card.phase:
        facts |= {"phase": card.phase, "progress": round(card.progress, 3)}
    if card.remark:
        facts["remark"] = card.remark
    if tokens_per_s is not None:
        facts["tokens_per_s"] = round(tokens_per_s, 1)
    machine: Facts = {"host": card.host, "pid": card.pid}
    if card.gpu is not None:
        machine["gpu"] = msgspec.structs.asdict(card.gpu)
    return facts | _for(viewer, machine)


def _queues(depths: Iterable[QueueDepth]) -> Facts:
    """By model and class."""
    queues: Facts = {}
    for depth in depths:
        queues.setdefault(depth.model, {})[depth.job_class] = {
            "num_waiting": depth.num_waiting,
            "num_taken": depth.num_taken,
            "oldest_wait_s": depth.oldest_wait_s,
        }
    return queues


def _totals(snapshot: ClusterSnapshot) -> Facts:
    """Over all there are now: who goes takes its counts along."""
    works = [card.work for card in snapshot.workers]
    return {
        "num_redelivered": sum(work.num_redelivered for work in works),
        "num_released": sum(work.num_released for work in works),
        "num_fenced_writes": sum(card.num_fenced for card in snapshot.roles),
        "num_dead": snapshot.num_dead,
    }


def _roles(cards: Iterable[RoleCard]) -> Facts:
    found = {}
    for card in cards:
        found[card.id] = {
            "host": card.host,
            "pid": card.pid,
            "started_at": round(card.started_at, 3),
            **_more(card),
        }
    return found


def _more(card: RoleCard) -> Facts:
    if card.role == ROLE:
        return {}
    if card.role == SUPERVISOR:
        return {"pool": card.pool, "failure": card.failure}
    return {"num_fenced": card.num_fenced}


def _event(event: PoolEvent, viewer: Viewer) -> Facts:
    kind = "scale" if isinstance(event, ScaleEvent) else "worker"
    facts = {name: value for name, value in msgspec.structs.asdict(event).items() if value != ""}
    hidden = () if viewer.is_operator else _OF_OPERATORS
    return {"event": kind} | {name: facts[name] for name in facts if name not in hidden}


def _request(request: RecentRequest, seen: Sight, viewer: Viewer) -> Facts:
    facts: Facts = {
        "model": request.model,
        "route": request.route,
        "arrived_at": round(request.arrived_at, 2),
        "is_running": request.status is None,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_cached_tokens": request.num_cached_tokens,
        "num_output_tokens": request.num_output_tokens,
        "paths": [hops_view(seen.paths.get(rid, ())) for rid in request.rids],
    }
    if request.status is not None:
        facts |= {"status": request.status, "finish": request.finish}
    for name, seconds in (("ttft_ms", request.ttft_s), ("e2e_ms", request.e2e_s)):
        if seconds is not None:
            facts[name] = round(seconds * 1000, 1)
    return facts | _for(viewer, {"tenant": request.tenant})


def _for(viewer: Viewer, facts: Facts) -> Facts:
    """What tenants are not told."""
    return facts if viewer.is_operator else {}
