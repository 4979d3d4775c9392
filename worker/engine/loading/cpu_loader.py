"""Models that run on the CPU: in our C++, or in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from shared.errors import ConfigError
from shared.gguf.gguf_model import holds_gguf
from shared.machine.host_limits import available_memory_bytes
from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.cache.page_allocator import PoolNeeds, num_empty_pages, num_kv_pages
from worker.engine.cache.state_snapshots import num_snapshots
from worker.engine.cpu.cache_memory import CacheMemory
from worker.engine.cpu.kv_cache_pool import KVCachePool, kv_cache_dtype
from worker.engine.cpu.model_runner import Forward, ModelRunner, StreamingForward, TorchForward
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.cuda.kv.kv_dtype import check_kv_scales
from worker.engine.drafting.draft_model import Draft, DraftHead, DraftModel
from worker.engine.drafting.model_drafter import ModelDrafter
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.images import ImageEncoder
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.loading import determinism, model_limits
from worker.engine.loading.draft_loading import DraftSetup, HeadSetup, LoadedHead, read_draft
from worker.engine.loading.memory_check import (
    BesideModel,
    check_memory,
    num_kept_values,
    pool_needs,
)
from worker.engine.loading.model_loader import LoadedModel, LoadSite
from worker.engine.loading.packed_loading import NativeLoader, check_packed
from worker.engine.loading.tier_loading import check_tier, open_tier, remark_on_tier
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model import Model
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_loading import load_model
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.recurrent.state_cache import StateCache
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.models.vision.tower import load_tower
from worker.engine.native.native_choice import (
    choose_native_library,
    choose_product_library,
    may_choose_native,
    may_multiply_codes,
    native_obstacle,
    wanted_inputs,
)
from worker.engine.native.native_forward import NativeForward
from worker.engine.native.native_library import NativeLibrary
from worker.engine.native.native_products import NativeProducts
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.speculation.draft_length import DraftLength
from worker.engine_link.engine_config import EngineConfig

MAX_KEPT_BYTES = 256 << 20  # of what a tower made of images
INT8_KV = "keys and values are kept in int8, with a scale for each token and head"
_INT8_INPUTS = "activations are rounded to int8, with a scale for each token"
_NOT_BUILT = "it cannot be built here, as the log says"
_NO_INTEGERS = "no weights are integers in groups of whole fours"


class _OnCpu(NamedTuple):
    pool: KVCachePool
    forward: Forward
    image_encoder: ImageEncoder | None = None
    coded_share: float = 0.0
    num_weight_bytes: int = 0
    kernel_set: str = ""
    remark: str = ""
    num_packed_failures: int = 0
    streams: StreamPool | None = None  # of a head that guesses


class _Libraries(NamedTuple):
    """The libraries for what is computed in our C++; None: it is not."""

    decoder: NativeLibrary | None
    products: NativeLibrary | None  # for what is in codes beside torch


class CpuLoader:
    """The `ModelLoader` of a machine without a GPU, or of device=cpu."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site
        self._model_path = Path(site.config.model_path)

    def suits(self, model: ModelConfig) -> bool:
        return self._site.gpu is None

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        config = self._site.config
        draft_setup = read_draft(config, setup)
        libraries = prepare_on_cpu(self._site, setup, draft_setup)
        self._site.progress.enter(LOAD_WEIGHTS)
        head = draft_setup.load() if isinstance(draft_setup, HeadSetup) else None
        beside = 0 if draft_setup is None else draft_setup.kv_bytes_per_token
        needs = pool_needs(config, setup.config, setup.dtype, setup.max_context_len, beside)
        loaded = self._load(setup, libraries, needs, head)
        pool, forward = loaded.pool, loaded.forward
        outside = open_tier(config, setup, pool, loaded.kernel_set)
        draft = self._draft(draft_setup, head, loaded, setup)
        num_snapshots = self._num_snapshots(setup.config, pool)
        memory = CacheMemory()
        states = self._make_states(setup.config, num_snapshots, memory)
        num_outputs, eyes = setup.config.num_outputs, loaded.image_encoder
        remarks = (
            self._remark(setup.config, num_snapshots),
            _remark_on_windows(pool),
            "" if outside is None else remark_on_tier(config, outside.tier),
            loaded.remark,
            "" if draft is None else f"{draft.name} guesses for it",
        )
        return LoadedModel(
            pool,
            lambda tables: ModelRunner(forward, pool, tables, num_outputs, grammars, eyes, states),
            forward.lora_projections,
            window=pool.layout.window,
            num_snapshots=num_snapshots,
            remark="; ".join(filter(None, remarks)),
            coded_share=loaded.coded_share,
            num_weight_bytes=loaded.num_weight_bytes,
            kernel_set=loaded.kernel_set,
            num_packed_failures=loaded.num_packed_failures,
            release_cache=lambda: _release(pool, memory, draft),
            outside=outside,
            no_embeds=_embeds_obstacle(setup.config),
            tells_hidden=True,
            make_drafter=None if draft is None else _drafters(draft, grammars, config),
        )

    def _load(
        self,
        setup: ModelSetup,
        libraries: _Libraries,
        needs: PoolNeeds,
        head: LoadedHead | None = None,
    ) -> _OnCpu:
        if libraries.decoder is None:
            return self._load_torch(setup, libraries.products, needs, head)
        return self._load_native(setup, libraries.decoder, needs, head)

    def _draft(
        self,
        draft: DraftSetup | HeadSetup | None,
        head: LoadedHead | None,
        target: _OnCpu,
        setup: ModelSetup,
    ) -> Draft | None:
        """What guesses for it: a head on its streams, or a small model. Raises ConfigError."""
        if head is not None:
            return _put_beside(target, head)
        return self._load_draft(draft, target, setup) if isinstance(draft, DraftSetup) else None

    def _load_draft(self, draft: DraftSetup, target: _OnCpu, setup: ModelSetup) -> DraftModel:
        """Raises ConfigError."""
        config, model = draft.beside(target.pool.num_tokens), draft.setup.config
        library = choose_native_library(config, model, draft.setup.dtype)
        loader = CpuLoader(replace(self._site, config=config))
        needs = PoolNeeds(config.page_size, draft.kv_bytes_per_token)  # pages as the others have
        loaded = loader._load(draft.setup, _Libraries(library, None), needs)
        return DraftModel(
            f"{Path(config.model_path).name} ({model.num_parameters / 1e6:.1f} million parameters)",
            loaded.forward,
            loaded.pool,
            draft.setup.max_context_len,
            setup.config.num_outputs,
        )

    def _load_native(
        self, setup: ModelSetup, library: NativeLibrary, needs: PoolNeeds, head: LoadedHead | None
    ) -> _OnCpu:
        loaded = NativeLoader(self._site, setup, library).load()
        weights = loaded.weights
        inputs = self._remark_on_inputs(weights.placed.integer_share)
        pool = self._make_pool(setup, needs)
        streams = None if head is None else head.make_streams(pool.num_tokens)
        num_threads = torch.get_num_threads()
        forward = NativeForward(weights, pool, setup.max_context_len, num_threads, streams)
        return _OnCpu(
            pool,
            forward,
            self._load_eyes(setup),
            coded_share=weights.placed.coded_share,
            num_weight_bytes=weights.placed.num_bytes,
            kernel_set=library.kernel_set.name,
            remark="; ".join(filter(None, (inputs, loaded.remark))),
            num_packed_failures=loaded.num_failures,
            streams=streams,
        )

    def _load_torch(
        self,
        setup: ModelSetup,
        library: NativeLibrary | None,
        needs: PoolNeeds,
        head: LoadedHead | None,
    ) -> _OnCpu:
        """Loads it with a library for what is multiplied in codes."""
        products = (
            None
            if library is None
            else NativeProducts(library, torch.get_num_threads(), wanted_inputs(self._site.config))
        )
        model = load_model(
            setup.config,
            self._model_path,
            self._site.config.load_format,
            setup.dtype,
            setup.max_context_len,
            self._site.progress.on_weights,
            products,
        )
        pool = self._make_pool(setup, needs)
        attention = TorchAttentionBackend(pool, model.attention_layers)
        whole = model if isinstance(model, TransformersModel) else None
        streams, forward = None, TorchForward(model, attention)
        if head is not None:
            assert isinstance(model, DecoderModel), "others have been refused"
            streams = head.make_streams(pool.num_tokens)
            forward = StreamingForward(model, attention, streams)
        on_cpu = _OnCpu(pool, forward, self._load_eyes(setup, whole), streams=streams)
        remark = self._remark_on_inputs(0.0 if products is None else products.integer_share)
        if products is None or not products.num_coded:
            return on_cpu
        return on_cpu._replace(
            remark=remark,
            num_weight_bytes=_num_other_bytes(setup, model, products) + products.num_bytes,
            coded_share=products.num_coded / _num_stored_values(setup.config),
        )

    def _load_eyes(
        self, setup: ModelSetup, whole: TransformersModel | None = None
    ) -> ImageEncoder | None:
        """The tower, or the whole model that has one. None: it takes no images, and no audio."""
        sight, sound, tower = setup.config.sight, setup.config.sound, setup.config.tower
        if tower is not None:
            load_format = self._site.config.load_format
            loaded = load_tower(tower, sight, sound, self._model_path, load_format, setup.dtype)
            return ImageEncoder(loaded, sight, loaded, max_kept_bytes=MAX_KEPT_BYTES)
        if sight is None:
            return None
        assert whole is not None, "no other kind sees by itself"
        return ImageEncoder(whole, sight, max_kept_bytes=MAX_KEPT_BYTES)

    def _remark(self, model: ModelConfig, num_snapshots: int | None) -> str:
        if num_snapshots is not None:
            return model_limits.remark_on_states(model, num_snapshots)
        return INT8_KV if self._site.config.kv_dtype == "int8" else ""

    def _remark_on_inputs(self, integer_share: float) -> str:
        """Raises ConfigError where none are rounded, and should be."""
        if integer_share == 0.0:
            if self._site.config.cpu_activations == "int8":
                raise _not_by_torch("cpu_activations=int8", _NO_INTEGERS)
            return ""
        part = "" if integer_share == 1.0 else f" before {integer_share:.0%} of the weights"
        return _INT8_INPUTS + part

    def _num_snapshots(self, model: ModelConfig, pool: KVCachePool) -> int | None:
        """In what weights, requests that run, keys and values leave of the memory. None: it has
        no states.
        """
        if not model.state_layers:
            return None
        kv_bytes = pool.layout.bytes_per_token * pool.num_tokens
        running_bytes = model.state_bytes * self._site.step.max_running
        return num_snapshots(
            self._site.config,
            model.state_bytes,
            pool.num_pages,
            available_memory_bytes(),
            kv_bytes + running_bytes,
        )

    def _make_states(
        self, model: ModelConfig, num_snapshots: int | None, memory: CacheMemory
    ) -> StateCache | None:
        if num_snapshots is None:
            return None
        num_rows = self._site.step.max_running
        return StateCache(model.state_layers, num_rows, num_snapshots, memory.allocate)

    def _make_pool(self, setup: ModelSetup, needs: PoolNeeds) -> KVCachePool:
        """In what the weights have left of the memory."""
        layers, config = setup.config.attention_layers, self._site.config
        kv_dtype = kv_cache_dtype(config.kv_dtype, setup.dtype)
        layout = KVLayout.of(layers, kv_dtype, config.page_size)
        if not layers:
            max_running = self._site.step.max_running
            return KVCachePool(layout, num_empty_pages(config, max_running, setup.max_context_len))
        return KVCachePool(layout, *num_kv_pages(config, needs))


def _put_beside(target: _OnCpu, head: LoadedHead) -> DraftHead:
    assert isinstance(target.forward, NativeForward | StreamingForward), "it has streams"
    assert target.streams is not None, "it was loaded for this head"
    return head.beside(target.forward, target.streams, target.pool.num_pages)


def _release(pool: KVCachePool, states: CacheMemory, draft: Draft | None) -> None:
    """No request may run, no snapshot be kept."""
    for cache in (pool, states, draft):
        if cache is not None:
            cache.release()


def _drafters(
    draft: Draft, grammars: GrammarBackend, config: EngineConfig
) -> Callable[[KVLedger], ModelDrafter]:
    return lambda ledger: ModelDrafter(
        draft, ledger, grammars, DraftLength(config.num_draft_tokens)
    )


def _remark_on_windows(pool: KVCachePool) -> str:
    """Where they have pages of their own."""
    if pool.num_window_pages is None:
        return ""
    groups = pool.layout.groups
    num_layers = sum(group.num_layers for group in groups if group.has_window)
    return (
        f"{num_layers} of {sum(group.num_layers for group in groups)} layers keep what a window of "
        f"{pool.layout.window} tokens sees: they have room for "
        f"{pool.num_window_pages * pool.page_size} tokens, the others for {pool.num_tokens}"
    )


def _embeds_obstacle(model: ModelConfig) -> str:
    """Why embeddings in the place of tokens would not be what the model's own are; "": they are."""
    if not isinstance(model, DecoderConfig):
        return ""
    for is_so, why in (
        (model.embedding_scale != 1.0, "multiplies its own with a scale"),
        (model.position_offset is not None, "adds embeddings of positions to its own"),
        (model.norms_embeddings, "normalises its own"),
        (model.layer_inputs is not None, "gives each layer others beside them"),
    ):
        if is_so:
            return f"{model.architecture} {why}"
    return ""


def _num_stored_values(model: ModelConfig) -> int:
    """The values of the layers' weights; of a mixture where codes are made, of its experts."""
    if model.num_expert_values and model.made_format is not None:
        return model.num_expert_values
    return model.num_projection_values if isinstance(model, DecoderConfig) else model.num_parameters


def _num_other_bytes(setup: ModelSetup, model: Model, products: NativeProducts) -> int:
    """The bytes of what torch multiplies."""
    if isinstance(model, TransformersModel):
        return model.num_bytes
    num_values = num_kept_values(setup.config, in_codes=True) - products.num_values
    return num_values * setup.dtype.itemsize


def prepare_on_cpu(
    site: LoadSite, setup: ModelSetup, draft: DraftSetup | HeadSetup | None = None
) -> _Libraries:
    """What comes before any weights. Raises ConfigError for a model that does not fit, or not as it
    is configured.
    """
    config, model, dtype = site.config, setup.config, setup.dtype
    _check_int8_kv(config, setup)
    check_tier(config, setup)
    may_have_products = may_multiply_codes(config, model, dtype)
    if config.cpu_activations == "int8":
        _check_int8_inputs(config, setup, may_have_products=may_have_products)
    model_limits.check_on_cpu(config, model, dtype)
    may_be_native = may_choose_native(config, model, dtype)
    in_codes = may_be_native or may_have_products
    beside = BesideModel() if draft is None else draft.memory
    check_memory(config, model, dtype, setup.max_context_len, in_codes=in_codes, beside=beside)
    site.progress.enter("prepare kernels")  # the first time the C++ compiler runs
    library = choose_native_library(config, model, dtype)
    is_native = library is not None
    check_packed(config, is_native=is_native)
    if config.kv_dtype == "int8" and not is_native:
        raise _not_by_torch("kv_dtype=int8", _NOT_BUILT)
    beside_torch = may_have_products and not is_native
    products = choose_product_library(config) if beside_torch else None
    if config.cpu_activations == "int8" and library is None and products is None:
        raise _not_by_torch("cpu_activations=int8", _NOT_BUILT)
    model_limits.check_library(model, is_there=products is not None)
    if in_codes and library is None and products is None:
        check_memory(config, model, dtype, setup.max_context_len, beside=beside)
    determinism.check_on_cpu(config, model, dtype, is_native=is_native)
    return _Libraries(library, products)


def _check_int8_kv(config: EngineConfig, setup: ModelSetup) -> None:
    """Raises ConfigError where keys and values are to be in int8, and cannot."""
    if config.kv_dtype != "int8":
        return
    _check_native("kv_dtype=int8", config, setup)
    path = Path(config.model_path)
    if config.load_format != "dummy" and not holds_gguf(path):
        check_kv_scales(config.kv_dtype, path)


def _check_int8_inputs(config: EngineConfig, setup: ModelSetup, *, may_have_products: bool) -> None:
    """Raises ConfigError where weights are known to be no integers, or our C++ does not compute."""
    wanted = "cpu_activations=int8"
    if not may_have_products:
        _check_native(wanted, config, setup)
    if not setup.config.quantization and setup.config.made_format is None:
        raise ConfigError(
            f"{wanted} is not possible: weights are in 16 bits, and quantization=int8 or int4 "
            "makes them integers"
        )


def _check_native(wanted: str, config: EngineConfig, setup: ModelSetup) -> None:
    """Raises ConfigError."""
    if config.cpu_kernels == "torch":
        raise _not_by_torch(wanted, "cpu_kernels is torch")
    reason = native_obstacle(config, setup.config, setup.dtype)
    if reason is not None:
        raise _not_by_torch(wanted, reason)


def _not_by_torch(wanted: str, reason: str) -> ConfigError:
    return ConfigError(f"{wanted} is not possible: our C++ alone has it, and {reason}")
