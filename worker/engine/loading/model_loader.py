"""The seam between an engine and the ways to load its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shared.protocol.role_cards import GpuCard
from shared.protocol.sampling import PoolingParams
from worker.engine.cache.req_to_token_pool import PageTables
from worker.engine.cache.window_pages import WindowPages
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.loading.load_progress import LoadProgress
from worker.engine.lora.adapter_pool import MakeProjections
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup
from worker.engine.request.req_window import DEAF, Ears
from worker.engine.request.step_limits import StepLimits
from worker.engine.request.step_result import BatchRunner
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.speculation.drafter import Drafter
from worker.engine.tiers.kv_tier import KVTier, KVTransfer, PageMemory
from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class LoadSite:
    """What every `ModelLoader` is made with: the same for all models."""

    config: EngineConfig
    step: StepLimits
    gpu: GpuDevice | None  # None: the CPU
    progress: LoadProgress


class KVSize(Protocol):
    """A pool of keys and values, as the books know it."""

    page_size: int
    num_pages: int
    num_window_pages: int | None  # of layers with a window; None: they have no pages of their own
    num_tokens: int


class OutsidePool(NamedTuple):
    """Where pages go that leave the pool, the memory that they are copied from and to, and where
    others come from.
    """

    tier: KVTier
    memory: PageMemory
    transfer: KVTransfer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights, and room for what it keeps."""

    pool: KVSize
    make_runner: Callable[[PageTables], BatchRunner]  # for the rows of one scheduler
    make_projections: MakeProjections  # of LoRA adapters
    window: int | None = None  # where the pool has pages for it
    num_snapshots: int | None = None  # of recurrent states, at page borders; None: it has none
    pooling: PoolingParams | None = None  # set: it gives this, and no tokens
    coded_share: float = 0.0  # of its layers' weights: what is multiplied as it is stored
    num_weight_bytes: int = 0  # in memory, of all weights; 0: not counted
    remark: str = ""  # what its operator should know
    ears: Ears = DEAF
    min_step_s: float = 0.0  # of a step that hears something: none can be shorter
    no_images: str = ""  # why it takes none, where another loader's would
    # Why it takes no embeddings in the place of a prompt's tokens; "": it does.
    no_embeds: str = "only models that make tokens on a CPU, with tp=1, read them"
    tells_hidden: bool = False  # states, to requests that ask for them
    gpu: GpuCard | None = None
    kernel_set: str = ""  # of our C++
    num_packed_failures: int = 0  # of the packed form on disk: not had, or not as it was written
    # Gives the memory of the pool back until it is written again. None: it cannot.
    release_cache: Callable[[], None] | None = None
    outside: OutsidePool | None = None  # None: what leaves the pool is gone
    # For the books of one scheduler. None: it has no draft model.
    make_drafter: Callable[[KVLedger], Drafter] | None = None

    def window_pages(self) -> WindowPages | None:
        """Their books, for one scheduler."""
        num_pages = self.pool.num_window_pages
        if num_pages is None:
            return None
        assert self.window is not None
        return WindowPages(num_pages, self.pool.page_size, self.window)

    @property
    def keeps_states(self) -> bool:
        """Whether pages alone do not tell how a text goes on: no token can be taken back."""
        return self.num_snapshots is not None

    @property
    def has_prefixes(self) -> bool:
        """Whether another request can go on behind what one has computed."""
        return self.num_snapshots != 0


class ModelLoader(Protocol):
    """One way to load a model. A back end or a format of weights is a loader of its own, in the
    list of `engine_loader`.
    """

    def suits(self, model: ModelConfig) -> bool:
        """Whether it is the way for this model here; loaders before it in the list were asked."""
        ...

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        ...
