"""What `GET /cluster` and `GET /v1/streams/{id}/path` answer: by name or id, and without nulls."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from frontend.cluster.request_paths import Left
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.protocol.role_cards import WorkerState
from shared.subjects import JOB_CLASSES

JobClass = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(JOB_CLASSES)})]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ClusterStruct(WireStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of the cluster's document: what only operators see is optional in it."""


class AdapterView(ClusterStruct, frozen=True, kw_only=True):
    """A LoRA adapter of a model."""

    revision: str
    rank: Count


class ModelView(ClusterStruct, frozen=True, kw_only=True):
    """A model that is listed."""

    pool: str
    revision: str
    max_context_len: Count
    created: Count  # unix seconds
    adapters: dict[str, AdapterView]


class GpuView(ClusterStruct, frozen=True, kw_only=True):
    """What an engine has on its GPU; on each of them, when there are several."""

    name: str
    dtype: str
    kv_dtype: str
    attention: str
    num_gpus: Count
    total_bytes: Count
    weight_bytes: Count
    kv_bytes: Count
    graph_bytes: Count
    free_bytes: Count


class WorkerView(ClusterStruct, frozen=True, kw_only=True):
    """A worker, by its last heartbeat."""

    model: str
    revision: str
    state: WorkerState
    started_at: Amount  # unix seconds
    num_running: Count
    num_waiting: Count
    max_running: Count
    kv_cache_usage: _Share
    num_kv_tokens: Count
    num_steps: Count
    num_finished: Count
    num_generated: Count
    num_redelivered: Count
    num_released: Count
    num_fenced: Count
    num_prefix_queries: Count
    num_prefix_hits: Count
    phase: str | UnsetType = UNSET  # while it loads
    progress: Amount | UnsetType = UNSET
    remark: str | UnsetType = UNSET
    role: str | UnsetType = UNSET  # prefill or decode, where it is one of them
    kernel_set: str | UnsetType = UNSET  # of its C++: workers of one set make the same bits
    weights: str | UnsetType = UNSET  # their format; of one that has loaded them
    tokens_per_s: float | UnsetType = UNSET  # of one that was seen twice
    host: str | UnsetType = UNSET
    pid: Count | UnsetType = UNSET
    gpu: GpuView | UnsetType = UNSET


class QueueView(ClusterStruct, frozen=True, kw_only=True):
    """Requests of one model and class."""

    num_waiting: Count
    num_taken: Count
    oldest_wait_s: float


class ClusterTotals(ClusterStruct, frozen=True, kw_only=True):
    """Over all there are now."""

    num_redelivered: Count
    num_released: Count
    num_fenced_writes: Count
    num_dead: Count


class ClusterFigures(ClusterStruct, frozen=True, kw_only=True):
    """Sums over all workers and queues at one moment."""

    at: Amount  # unix seconds
    num_waiting: Count
    oldest_wait_s: Amount
    num_running: Count
    max_running: Count
    tokens_per_s: Amount
    num_redelivered: Count  # since this frontend has looked
    kv_cache_usage: _Share | UnsetType = UNSET  # where there is a cache
    prefix_hits: _Share | UnsetType = UNSET  # of the prompt tokens that were looked up
    num_fenced: Count | UnsetType = UNSET  # entries of past epochs, since this frontend has looked


class ClusterHistoryView(ClusterStruct, frozen=True, kw_only=True):
    """The last five minutes, oldest first, as this frontend has seen them."""

    samples: list[ClusterFigures]
    # By worker, the share of its slots in use at each sample; null where it was not there.
    slot_usage: dict[str, list[_Share | None]]


class WorkerChange(WireStruct, frozen=True, kw_only=True, tag_field="event", tag="worker"):
    """A worker is in another state, or `starting`, or `gone`."""

    at: Amount  # unix seconds
    pool: str
    model: str
    worker: str
    state: str
    host: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET  # how it ended


class ScaleChange(WireStruct, frozen=True, kw_only=True, tag_field="event", tag="scale"):
    """The number of a pool's workers is changed, and why."""

    at: Amount  # unix seconds
    pool: str
    model: str
    scaler: str
    num_workers: Count
    num_wanted: Count
    reason: str
    need: float  # workers
    num_ready: Count
    num_waiting: Count
    num_running: Count
    num_waiting_tokens: Count
    num_running_tokens: Count
    oldest_wait_s: float
    requests_per_s: float
    worker_tokens_per_s: float
    role: str  # of the workers that are counted; both: of all


class HopView(ClusterStruct, frozen=True, kw_only=True):
    """A stay on one worker, from the claim at `epoch` on."""

    worker: str
    epoch: Count
    at: Amount  # unix seconds
    left: Left | UnsetType = UNSET  # before the request's end


class RequestPath(ClusterStruct, frozen=True, kw_only=True):
    """The workers that had each choice of a request, oldest first."""

    rid: str
    paths: list[list[HopView]]


class RequestView(ClusterStruct, frozen=True, kw_only=True):
    """A request of this frontend."""

    model: str
    route: str
    arrived_at: Amount  # unix seconds
    is_running: bool
    num_prompt_tokens: Count
    num_cached_tokens: Count
    num_output_tokens: Count
    paths: list[list[HopView]]
    status: Count | UnsetType = UNSET  # of HTTP
    finish: str | UnsetType = UNSET
    ttft_ms: Amount | UnsetType = UNSET
    e2e_ms: Amount | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class FrontendView(ClusterStruct, frozen=True, kw_only=True):
    """A process of the service."""

    host: str
    pid: Count
    started_at: Amount  # unix seconds


class DetokenizerView(FrontendView, frozen=True, kw_only=True):
    """A detokenizer, and how many entries of the log it took for written by past epochs."""

    num_fenced: Count


class SupervisorView(FrontendView, frozen=True, kw_only=True):
    """What starts workers, and the last words of those that die before they are ready."""

    pool: str
    failure: str


class ClusterView(ClusterStruct, frozen=True, kw_only=True):
    """The whole service at one moment, as one frontend sees it."""

    version: str
    frontend: str  # that tells it
    admin_url: str | UnsetType = UNSET
    at: Amount  # unix seconds
    is_operator: bool  # whoever asks
    models: dict[str, ModelView]
    workers: dict[str, WorkerView]
    queues: dict[str, dict[JobClass, QueueView]]
    totals: ClusterTotals
    figures: ClusterFigures
    events: dict[str, WorkerChange | ScaleChange]  # by sequence
    requests: dict[str, RequestView]
    frontends: dict[str, FrontendView] | UnsetType = UNSET
    detokenizers: dict[str, DetokenizerView] | UnsetType = UNSET
    supervisors: dict[str, SupervisorView] | UnsetType = UNSET
