"""What the worker's I/O process and its engine process tell each other, over one socket pair.

The engine knows nothing of NATS, text or epochs: it is given prompts with the tokens made so far,
and gives back new tokens. A run is one stay of a request in this engine: `run_id` is made by the
I/O process and never reused, so that output of an aborted run can be told from a later one.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shared.protocol.finish import Finish
from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.request import EmbedsDtype, KeepPrefix
from shared.protocol.role_cards import GpuCard
from shared.protocol.sampling import PoolingParams, SamplingParams

NUM_DRAFT_POSITIONS = 8  # that are counted apart


class RunImage(msgspec.Struct, frozen=True, array_like=True):
    """An image of a prompt, a moment of a video, or a window of audio, in the place of its tokens
    [start, start + num_tokens).
    """

    start: int
    num_tokens: int
    digest: bytes  # of size, pixels and time: equal images are equal prefixes, others are not
    # [height, width, 3] uint8; of a moment one frame below the other; of audio frames of a
    # spectrogram, [num_frames with some of silence, num_mel_bins] float32, little-endian
    pixels: bytes
    height: int = 0  # 0: the model's, whose images are all of one size
    width: int = 0
    num_frames: int = 0  # as of `ImageSpan`
    goes_on: bool = False
    time: int = 0
    num_sound_frames: int = 0


class RunEmbeds(msgspec.Struct, frozen=True, array_like=True):
    """What is read in the place of all tokens of a prompt."""

    width: int  # numbers of a row
    dtype: EmbedsDtype
    rows: bytes  # [number of tokens, width]


class RunAudio(msgspec.Struct, frozen=True, array_like=True):
    """What a run hears."""

    num_frames: int
    digest: bytes  # of the frames
    frames: bytes  # [num_frames and some of silence, num_mel_bins] float32, little-endian


class PagePeer(msgspec.Struct, frozen=True, array_like=True):
    """A worker that sends its pages to whoever proves its key."""

    address: str  # HOST:PORT
    key: bytes


class RunOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How a run is computed, in what company, and what stays of it: the same from its request to
    the scheduler's books, so that a new option is named by who sets it and who reads it alone.

    With `pooling` nothing is decoded: the finish carries the embedding of the prompt.
    """

    sampling: SamplingParams
    priority: int = 0  # lower is earlier
    namespace: bytes = b""  # opaque: only runs with an equal one share cached prefixes
    public: PublicPrefix | None = None  # but for the beginning of the prompt that all runs share
    pooling: PoolingParams | None = None
    adapter: str = ""  # id of one that is loaded
    keep: KeepPrefix | None = None  # how much of its prompt stays cached longer than by use
    seeks_pages: bool = False  # another worker has just put pages of it outside the pool
    peer: PagePeer | None = None  # another worker has pages of it


class AddRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="add"):
    """Run this request: prefill prompt + output so far, then decode."""

    run_id: int
    prompt_ids: bytes  # little-endian uint32
    output_ids: bytes = b""  # tokens that earlier epochs logged, little-endian uint32
    options: RunOptions
    images: tuple[RunImage, ...] = ()  # in their order, without overlaps
    embeds: RunEmbeds | None = None
    audio: RunAudio | None = None


class AbortRequest(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Drop this run and free its pages; no output follows. Unknown ids are ignored."""

    run_id: int


class SetPaused(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Stop or go on stepping: the log cannot take more for the moment."""

    paused: bool


class FlushCache(msgspec.Struct, frozen=True, array_like=True, tag="flush"):
    """Forget all cached prefixes that no run holds."""


class ReleaseCache(msgspec.Struct, frozen=True, array_like=True, tag="release_cache"):
    """Give the memory of the cache back until runs write to it again; `CacheReleased` follows. No
    run may be there.
    """


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Load a LoRA adapter; `AdapterLoaded` follows. Runs that come behind it may name it."""

    adapter: str  # id, unique for its content
    path: str  # folder


class DropAdapter(msgspec.Struct, frozen=True, array_like=True, tag="drop_adapter"):
    """No more runs with it come; those that are here go on. Unknown ids are ignored."""

    adapter: str


class SetProfiling(msgspec.Struct, frozen=True, array_like=True, tag="profile"):
    """Begin a profile of what is computed, or end it: then it is written."""

    max_s: float  # it ends by itself after so long; 0: it ends now


EngineCommand: TypeAlias = (
    AddRequest
    | AbortRequest
    | SetPaused
    | FlushCache
    | ReleaseCache
    | LoadAdapter
    | DropAdapter
    | SetProfiling
)


class RunOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New tokens of one run. With `finish` set, the run is over."""

    run_id: int
    token_ids: list[int]
    finish: Finish | None = None
    logprobs: bytes = b""  # one record of `shared.protocol.logprobs` a token, when it asks for them
    prompt_logprobs: bytes = b""  # of the whole prompt, with the first output of a run


REJECT_REASONS = ("damaged", "truncated", "foreign", "other_prefix", "unreadable")
FETCH_REASONS = (*REJECT_REASONS, "missing", "unproven", "unreachable", "busy")
LOSS_REASONS = ("disk_full", "no_room", "unwritable", "slow", "busy")


class TierLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of what is behind the KV pool: a disk, and other workers; counts are since start."""

    num_bytes: int = 0  # there now, with those of other workers
    num_queries: int = 0  # prompt tokens looked up there
    num_hits: int = 0  # of which came from there
    num_slow_pages: int = 0  # there, and faster computed
    num_read_bytes: int = 0
    num_written_bytes: int = 0
    rejected: tuple[int, ...] = (0,) * len(REJECT_REASONS)  # pages that were read and not taken
    lost: tuple[int, ...] = (0,) * len(LOSS_REASONS)  # pages that were not written
    num_fetched: int = 0  # of the hits: what came from other workers, over TCP
    num_fetched_bytes: int = 0
    refused: tuple[int, ...] = (0,) * len(FETCH_REASONS)  # pages not had from them, or not taken

    @property
    def counts(self) -> tuple[int, ...]:
        return (
            self.num_queries,
            self.num_hits,
            self.num_slow_pages,
            self.num_read_bytes,
            self.num_written_bytes,
            *self.rejected,
            *self.lost,
            self.num_fetched,
            self.num_fetched_bytes,
            *self.refused,
        )


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    """How full the engine is, after the step that carries it."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int  # prompt tokens not yet prefilled, waiting and running
    num_free_slots: int
    num_free_tokens: int  # KV slots free or evictable
    num_kv_tokens: int  # KV slots in all
    num_preemptions: int  # since start
    num_prefix_queries: int  # prompt tokens looked up in the prefix cache, since start
    num_prefix_hits: int  # of which were found
    num_drafted: int = 0  # tokens guessed, since start
    num_accepted: int = 0  # of which were right
    num_pinned_tokens: int = 0  # of the prefix cache, kept longer than by use
    gpu_free_bytes: int = 0  # that no program holds, some seconds ago at most
    num_snapshots: int = 0  # recurrent states that the prefix cache holds
    # Since start, how often the first, second, ... guess of a step was right.
    accepted_by_position: tuple[int, ...] = (0,) * NUM_DRAFT_POSITIONS
    tier: TierLoad = TierLoad()


class RunBegin(msgspec.Struct, frozen=True, array_like=True):
    """A run has left the engine's queue; one that is retracted begins again."""

    run_id: int
    queue_s: float  # since it came
    num_cached_tokens: int = 0  # of its prompt, that the prefix cache had when it first began


class RunShare(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a run had of a step, where that is not the one token of its output."""

    run_id: int
    num_tokens: int  # that went through the model
    num_drafted: int = 0  # of them were guesses; 0: they are of a prefill


class StepOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag="step"):
    """One engine step. Also sent without outputs when the engine has become idle."""

    step: int  # grows by one a step
    outputs: list[RunOutput]
    load: EngineLoad
    num_tokens: int = 0  # that went through the model
    begun: list[RunBegin] = []
    num_fitting: int | None = None  # tokens that the GPU's memory had room for at once; None: all
    token_s: float = 0.0  # time of the engine for each of `num_tokens`
    shares: list[RunShare] = []


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag="adapter"):
    """What became of a `LoadAdapter`."""

    adapter: str
    error: str = ""  # why it is not loaded


class CacheReleased(msgspec.Struct, frozen=True, array_like=True, tag="cache_released"):
    """The operating system has the memory of a `ReleaseCache`."""


class EngineLoading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """Progress before the engine is ready."""

    phase: str
    progress: float  # 0 to 1


class RanksAwaited(msgspec.Struct, frozen=True, array_like=True, tag="ranks"):
    """It waits for ranks of other hosts, and goes on when all are there."""

    address: str  # where it listens
    port: int
    secret: bytes  # of this start
    config: str  # of all ranks, JSON: each host puts its own folder of weights in


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The model is loaded; limits that the I/O process must respect."""

    max_context_len: int
    vocab_size: int
    max_running: int  # slots
    num_kv_tokens: int
    max_step_tokens: int  # token budget of a step
    # How long the shortest step took at warm-up, or one that hears something: none can be shorter.
    one_token_step_s: float = 0.0
    num_pinnable_tokens: int = 0  # KV slots that may hold prefixes which requests ask to keep
    startup_s: dict[str, float] = {}  # what each phase of the start took, in order
    remark: str = ""  # what its operator should know
    gpu: GpuCard | None = None
    kernel_set: str = ""  # of our C++: workers of one set make the same bits
    weights: str = ""  # their format, like "bfloat16" or "gptq 4-bit"
    has_prefixes: bool = True  # whether what one request computed serves others
    dtype: str = ""  # of activations, like "bfloat16"
    takes_no_images: bool = False  # though the model does
    num_packed_failures: int = 0  # of packed weights on disk that could not be taken or kept
    num_snapshot_slots: int = 0  # recurrent states that there is room for at page borders
    can_release_cache: bool = False  # and keep its weights
    takes_no_embeds: bool = False
    keeps_kv: bool = True  # of its tokens; else KV slots hold nothing
    tells_no_hidden: bool = False
    pages: str = ""  # names where it puts pages that others may read; "": nowhere


class EngineFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The engine cannot start; one sentence that says what to do."""

    message: str


EngineEvent: TypeAlias = (
    StepOutput
    | AdapterLoaded
    | CacheReleased
    | EngineLoading
    | RanksAwaited
    | EngineReady
    | EngineFailed
)
