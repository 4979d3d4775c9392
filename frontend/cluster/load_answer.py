"""What /v1/loads answers, in SGLang's words where it has one."""

from __future__ import annotations

from frontend.cluster.cluster_answer import JobClass
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.protocol.role_cards import WorkerState


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
    """Over all of them."""

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
