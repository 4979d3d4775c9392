"""Who is there, and what became of whom."""

from __future__ import annotations

import enum
import operator
from typing import Literal, TypeAlias

import msgspec


class WorkerState(enum.StrEnum):
    """Where a worker stands."""

    LOADING = "loading"
    READY = "ready"
    PAUSED = "paused"  # takes nothing; what it has goes on
    FROZEN = "frozen"  # takes nothing; what it has stands still
    UPDATING = "updating"  # takes nothing until it has other weights
    DRAINING = "draining"
    HUNG = "hung"  # its engine makes no steps: it gives its requests back, and exits

    @property
    def may_take(self) -> bool:
        """Whether it takes requests, or will, with the revision that its card names."""
        return self not in (WorkerState.UPDATING, WorkerState.DRAINING, WorkerState.HUNG)


# What a worker does of its requests. both: all. prefill: up to the first token, where a worker that
# does the rest has room. decode: the rest, and all of them while no other worker is ready.
WorkerRole: TypeAlias = Literal["both", "prefill", "decode"]


class WorkDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker has done since its start; tokens are prompt tokens computed, and output."""

    num_tokens: int = 0
    num_finished: int = 0  # requests
    num_finished_tokens: int = 0  # of these
    num_redelivered: int = 0  # deliveries that were not the first of their request
    num_generated: int = 0  # output tokens
    num_released: int = 0  # requests handed over
    num_fenced: int = 0  # requests lost to another worker
    num_prefix_queries: int = 0  # prompt tokens looked up in the prefix cache, by this engine
    num_prefix_hits: int = 0  # of which were found

    def since(self, before: WorkDone) -> WorkDone:
        """What was done between the two."""
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        return WorkDone(*map(operator.sub, ours, theirs))


class GpuCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine has on its GPU; on each of them, when there are several."""

    name: str
    dtype: str  # of weights and activations
    kv_dtype: str  # of keys and values
    attention: str  # which kernels
    num_gpus: int = 1
    total_bytes: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    graph_bytes: int = 0  # of CUDA graphs
    free_bytes: int = 0  # that no program holds: some seconds ago, or at the last step


LOAD_WEIGHTS = "load weights"  # the phase whose progress is a share of the weights' bytes


class WorkerCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's heartbeat in the KV bucket `workers`; its absence means death."""

    worker: str
    pool: str
    model: str
    revision: str
    state: WorkerState
    phase: str = ""  # while loading: what it does
    progress: float = 0.0  # while loading: 0 to 1
    num_running: int = 0
    num_waiting: int = 0
    max_running: int = 0
    kv_cache_usage: float = 0.0
    step: int = 0  # engine steps so far
    host: str = ""
    pid: int = 0
    started_at: float = 0.0  # unix seconds
    prefix_hashes: bytes = b""  # of the prefixes used last, joined; the latest first
    num_updates: int = 0  # of its weights, or to sleep and wake, begun since its start
    update_error: str = ""  # why the last one failed
    work: WorkDone = WorkDone()
    num_kv_tokens: int = 0  # KV slots in all
    num_waiting_tokens: int = 0  # of prompts, not prefilled yet, waiting and running
    at: float = 0.0  # unix seconds of the worker's clock: when it was written
    startup_s: dict[str, float] = {}  # of its engine: what each phase of the start took
    remark: str = ""  # of its engine: what its operator should know
    gpu: GpuCard | None = None  # None: it runs on processors, or loads
    level: int = 1  # the highest feature level that it knows
    has_presence: bool = False  # it listens on its presence subject
    kernel_set: str = ""  # of its C++, on a CPU: workers of one set make the same bits
    weights: str = ""  # of its engine: their format, like "bfloat16" or "gptq 4-bit"
    dtype: str = ""  # of its engine: of activations, like "bfloat16"
    takes_no_images: bool = False  # of its engine, though its model does
    takes_no_embeds: bool = False  # its engine reads no embeddings in the place of tokens
    tells_no_hidden: bool = False  # states: its engine keeps them to itself
    sleep_level: int = 0  # it is paused, and has given back the memory of: 1 its cache, 2 all
    role: WorkerRole = "both"
    pages: str = ""  # of its engine: the place where it and others with the same share their pages
    sends_pages_at: str = ""  # HOST:PORT, where other workers can fetch what is there
    fetches_pages: bool = False  # of others who say where
    num_kept: int = 0  # requests that no worker of role decode takes from it


class WorkerEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="worker"):
    """`jf.event.<pool>`: a worker is in another state, or `starting`, or `gone`."""

    at: float  # unix seconds, as all times here
    pool: str
    model: str
    worker: str
    state: str
    host: str = ""
    detail: str = ""  # how it ended


class ScaleEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="scale"):
    """`jf.event.<pool>`: the number of a pool's workers is changed, and why."""

    at: float
    pool: str
    model: str
    scaler: str  # who decided, and starts or stops workers of its own
    num_workers: int  # of the pool before, those that start included
    num_wanted: int  # of the pool
    reason: str
    need: float  # workers, not rounded
    num_ready: int
    num_waiting: int  # requests
    num_running: int
    num_waiting_tokens: int  # expected of those that wait, prompt and output
    num_running_tokens: int  # expected of those that run, in all
    oldest_wait_s: float
    requests_per_s: float  # that arrive
    worker_tokens_per_s: float  # of a full worker; 0: not known yet
    role: WorkerRole = "both"  # of the workers that are counted; both: of all


PoolEvent: TypeAlias = WorkerEvent | ScaleEvent


SUPERVISOR = "supervisor"  # role of what starts workers: `jetflock serve`, `jetflock autoscale`


class ChosenParser(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tells one kind of text from content."""

    name: str  # "": none
    because: str  # in words for people


class ChosenParsers(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a frontend reads the answers of one model."""

    tools: ChosenParser
    reasoning: ChosenParser


class RoleCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Heartbeat of a frontend, a detokenizer or a supervisor in the KV bucket `roles`."""

    id: str
    role: str
    host: str = ""
    pid: int = 0
    started_at: float = 0.0
    num_fenced: int = 0  # of a detokenizer: entries of the log that came from a past epoch
    pool: str = ""  # of a supervisor: whose workers it starts
    failure: str = ""  # of a supervisor: the last words of workers that die before they are ready
    level: int = 1  # the highest feature level that it knows
    parsers: dict[str, ChosenParsers] = {}  # of a frontend: by model, of those that it has read


class LevelRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The feature level in force, in the KV bucket `meta`; without a record it is 1."""

    level: int
    is_held: bool = False  # roles leave it as it is: an operator may want to go back


class MoveRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the KV bucket `meta`: as `moved_to` of the streams that are left, as `moved_from` of the
    others. `prefix` is that of the other side.
    """

    prefix: str
    is_over: bool = False  # the old streams are gone, or about to go


class Incarnation(msgspec.Struct, frozen=True):
    """What a set of streams was made with: every role compares it at start."""

    id: str
    protocol_version: int
    prefix: str
    num_partitions: int
    stream_created: dict[str, str]  # stream -> creation time: a re-made stream restarts sequences
