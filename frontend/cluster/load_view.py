"""Loads as JSON, in SGLang's words where it has one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from shared.protocol.role_cards import WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot


def loads_view(snapshot: ClusterSnapshot, version: str) -> dict[str, Any]:
    """`dp_rank` is a worker's place in this list, no name of it."""
    workers = [{"dp_rank": idx, **_worker_view(card)} for idx, card in enumerate(snapshot.workers)]
    queues = [
        {
            "model": queue.model,
            "class": queue.job_class,
            "num_waiting": queue.num_waiting,
            "num_taken": queue.num_taken,
            "oldest_wait_s": queue.oldest_wait_s,
        }
        for queue in snapshot.queues
    ]
    num_running = sum(card.num_running for card in snapshot.workers)
    num_waiting = sum(card.num_waiting for card in snapshot.workers)
    num_waiting += sum(queue.num_waiting for queue in snapshot.queues)
    return {
        "timestamp": datetime.fromtimestamp(snapshot.at, UTC).isoformat(),
        "version": version,
        "dp_rank_count": len(workers),
        "loads": workers,
        "queues": queues,
        "aggregate": {
            "total_running_reqs": num_running,
            "total_waiting_reqs": num_waiting,
            "total_reqs": num_running + num_waiting,
            "total_used_tokens": sum(worker["num_used_tokens"] for worker in workers),
            "total_tokens": sum(worker["num_total_tokens"] for worker in workers),
            "avg_token_usage": _mean(worker["token_usage"] for worker in workers),
            "avg_utilization": _mean(worker["utilization"] for worker in workers),
        },
    }


def _worker_view(card: WorkerCard) -> dict[str, Any]:
    num_used = round(card.kv_cache_usage * card.num_kv_tokens)
    return {
        "worker": card.worker,
        "model": card.model,
        "revision": card.revision,
        "state": card.state.value,
        "num_running_reqs": card.num_running,
        "num_waiting_reqs": card.num_waiting,
        "num_total_reqs": card.num_running + card.num_waiting,
        "num_used_tokens": num_used,
        "num_total_tokens": num_used + card.num_waiting_tokens,
        "max_total_num_tokens": card.num_kv_tokens,
        "token_usage": round(card.kv_cache_usage, 4),
        "max_running_requests": card.max_running,
        "utilization": round(card.num_running / card.max_running, 4) if card.max_running else 0.0,
    }


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return round(sum(known) / len(known), 4) if known else 0.0
