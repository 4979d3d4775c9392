"""A snapshot of the service as /v1/loads tells it, in SGLang's words where it has one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from frontend.cluster.cluster_answer import JobClass
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth


class WorkerLoad(WireStruct, frozen=True, kw_only=True):
    """How full a worker is."""

    dp_rank: Count  # its place in this list, no name of it
    worker: str
    model: str
    revision: str
    state: WorkerState
    num_running_reqs: Count
    num_waiting_reqs: Count
    num_total_reqs: Count
    num_used_tokens: Count
    num_total_tokens: Count
    max_total_num_tokens: Count
    token_usage: Amount
    max_running_requests: Count
    utilization: Amount


class QueueLoad(WireStruct, frozen=True, kw_only=True, rename={"job_class": "class"}):
    """What waits for a model."""

    model: str
    job_class: JobClass
    num_waiting: Count
    num_taken: Count
    oldest_wait_s: Amount


class LoadTotals(WireStruct, frozen=True, kw_only=True):
    """The sums over all workers and queues."""

    total_running_reqs: Count
    total_waiting_reqs: Count
    total_reqs: Count
    total_used_tokens: Count
    total_tokens: Count
    avg_token_usage: Amount
    avg_utilization: Amount


class Loads(WireStruct, frozen=True, kw_only=True):
    """How full the workers are, and what waits for them."""

    timestamp: str  # ISO 8601
    version: str
    dp_rank_count: Count
    loads: list[WorkerLoad]
    queues: list[QueueLoad]
    aggregate: LoadTotals


def loads_view(snapshot: ClusterSnapshot, version: str) -> Loads:
    """The loads of all its workers and queues."""
    workers = [_worker(idx, card) for idx, card in enumerate(snapshot.workers)]
    return Loads(
        timestamp=datetime.fromtimestamp(snapshot.at, UTC).isoformat(),
        version=version,
        dp_rank_count=len(workers),
        loads=workers,
        queues=[_queue(depth) for depth in snapshot.queues],
        aggregate=_totals(workers, snapshot.queues),
    )


def _worker(idx: int, card: WorkerCard) -> WorkerLoad:
    num_used = round(card.kv_cache_usage * card.num_kv_tokens)
    share = card.num_running / card.max_running if card.max_running else 0.0
    return WorkerLoad(
        dp_rank=idx,
        worker=card.worker,
        model=card.model,
        revision=card.revision,
        state=card.state,
        num_running_reqs=card.num_running,
        num_waiting_reqs=card.num_waiting,
        num_total_reqs=card.num_running + card.num_waiting,
        num_used_tokens=num_used,
        num_total_tokens=num_used + card.num_waiting_tokens,
        max_total_num_tokens=card.num_kv_tokens,
        token_usage=round(card.kv_cache_usage, 4),
        max_running_requests=card.max_running,
        utilization=round(share, 4),
    )


def _queue(depth: QueueDepth) -> QueueLoad:
    return QueueLoad(
        model=depth.model,
        job_class=depth.job_class,
        num_waiting=depth.num_waiting,
        num_taken=depth.num_taken,
        oldest_wait_s=depth.oldest_wait_s,
    )


def _totals(workers: Iterable[WorkerLoad], queues: Iterable[QueueDepth]) -> LoadTotals:
    workers = list(workers)
    num_running = sum(each.num_running_reqs for each in workers)
    num_waiting = sum(each.num_waiting_reqs for each in workers)
    num_waiting += sum(depth.num_waiting for depth in queues)
    return LoadTotals(
        total_running_reqs=num_running,
        total_waiting_reqs=num_waiting,
        total_reqs=num_running + num_waiting,
        total_used_tokens=sum(each.num_used_tokens for each in workers),
        total_tokens=sum(each.num_total_tokens for each in workers),
        avg_token_usage=_mean(each.token_usage for each in workers),
        avg_utilization=_mean(each.utilization for each in workers),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return round(sum(known) / len(known), 4) if known else 0.0
