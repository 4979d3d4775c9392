"""Whether a model fits into memory: asked before its weights are read."""

from __future__ import annotations

from typing import NamedTuple

import torch

from shared.errors import ConfigError
from shared.machine.host_limits import available_memory_bytes
from worker.engine.cache.page_allocator import PoolNeeds
from worker.engine.cache.window_pages import num_running_pages
from worker.engine.cpu.kv_cache_pool import kv_cache_dtype
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.models.coded_values import num_saved_bytes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig, is_classifier
from worker.engine.request.step_limits import StepLimits
from worker.engine.tiers.disk_tier import STAGED_BYTES
from worker.engine_link.engine_config import EngineConfig

MIN_KV_TOKENS = 1024  # with fewer, hardly a request could be served


class BesideModel(NamedTuple):
    """What a draft model takes beside the model that it guesses for."""

    num_weight_bytes: int = 0
    kv_bytes_per_token: int = 0


def check_memory(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    max_context_len: int,
    *,
    in_codes: bool = False,
    beside: BesideModel = BesideModel(),  # noqa: B008 - it cannot change
) -> None:
    """Raises ConfigError, with the numbers, when weights and the least of a KV pool do not fit."""
    num_weight_bytes = weight_bytes(model, dtype, in_codes=in_codes)
    needs = pool_needs(config, model, dtype, max_context_len, beside.kv_bytes_per_token)
    pool = needs.of_tokens(config.num_kv_tokens or min(max_context_len, MIN_KV_TOKENS))
    if config.kv_memory_bytes is not None and needs.bytes_per_token:
        pool = needs.of_bytes(config.kv_memory_bytes)
    kv_bytes = config.kv_memory_bytes or needs.num_bytes(pool)
    max_running = StepLimits.of(config, on_gpu=False).max_running
    num_snapshots = config.state_snapshots or 0  # by default they take what is left
    state_bytes = (max_running + num_snapshots) * model.state_bytes
    cross_bytes = max_running * model.cross_bytes(dtype)
    available = available_memory_bytes()
    staged_bytes = 2 * STAGED_BYTES if config.kv_disk_dir is not None else 0
    num_kept_bytes = kv_bytes + state_bytes + cross_bytes + staged_bytes
    if num_weight_bytes + beside.num_weight_bytes + num_kept_bytes <= available:
        return
    kept_tokens = ""
    if needs.bytes_per_token:
        num_kv_tokens = pool.num_pages * config.page_size
        kept_tokens = f", keys and values {_gib(kv_bytes)} ({num_kv_tokens} tokens)"
    is_of_experts = model.num_expert_values and model.made_format is not None
    coded = "experts" if is_of_experts else "projections"
    kept = (
        f", its {coded} in codes"
        if in_codes and model.coded_values
        else f" in {str(dtype).removeprefix('torch.')}"
    )
    stored = f"; they are stored in {model.quantization}" if model.quantization else ""
    if staged_bytes:
        kept_tokens += f", pages to and from kv_disk_dir {_gib(staged_bytes)}"
    states = ""
    if state_bytes:
        told = f", state_snapshots={num_snapshots}" if num_snapshots else ""
        states = f", recurrent states {_gib(state_bytes)} (max_running={max_running}{told})"
    if cross_bytes:
        states = f", those of audio {_gib(cross_bytes)} (max_running={max_running})"
    draft = ""
    if beside.num_weight_bytes:
        draft = f", {config.guesses_by} {_gib(beside.num_weight_bytes)}"
    raise ConfigError(
        f"{model.architecture} does not fit into memory: its {model.num_parameters / 1e9:.2f} "
        f"billion parameters take {_gib(num_weight_bytes)}{kept}{draft}{kept_tokens}{states}, "
        f"and {_gib(available)} are available{stored}"
    )


def pool_needs(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    max_context_len: int,
    beside_per_token: int = 0,
) -> PoolNeeds:
    """The needs of keys and values on a CPU, and of `beside_per_token` bytes that a draft model
    keeps. Layers with a window keep less of a text that is longer, unless its pages go to a disk as
    a whole.
    """
    kv_dtype = kv_cache_dtype(config.kv_dtype, dtype)
    layout = KVLayout.of(model.attention_layers, kv_dtype, config.page_size)
    needs = PoolNeeds(config.page_size, layout.bytes_per_token + beside_per_token)
    if config.kv_disk_dir is not None:
        return needs
    if layout.window is None or layout.window >= max_context_len or model.state_layers:
        return needs
    sight, step = model.sight, StepLimits.of(config, on_gpu=False)
    # Of an image whose tokens see each other all are computed at once
    is_mutual = sight is not None and sight.is_mutual
    num_image_tokens = len(sight.image_ids(sight.size.most)) if sight and is_mutual else 0
    return needs._replace(
        window_bytes_per_token=layout.window_bytes_per_token,
        num_running_pages=num_running_pages(
            layout.window,
            config.page_size,
            step.max_running,
            step.max_step_tokens + num_image_tokens,
        ),
    )


def weight_bytes(model: ModelConfig, dtype: torch.dtype, *, in_codes: bool = False) -> int:
    """The bytes of all weights, once they are loaded; `in_codes`: where codes are multiplied as
    such.
    """
    num_bytes = num_kept_values(model, in_codes=in_codes) * dtype.itemsize
    return num_bytes - num_saved_bytes(model, dtype) if in_codes else num_bytes


def _is_table_packed(model: DecoderConfig) -> bool:
    return model.beyond_native is None or model.has_coded_table


def num_kept_values(model: ModelConfig, *, in_codes: bool) -> int:
    """Our own decoder in torch keeps tied embeddings twice: as a table, and packed for products.
    Our C++ reads both from the same memory, as it does those in codes beside torch.
    """
    is_kept_twice = (
        isinstance(model, DecoderConfig)
        and not (in_codes and _is_table_packed(model))
        and model.has_tied_embeddings
        and not is_classifier(model.architecture)
    )
    num_seeing = 0 if model.tower is None else model.tower.num_parameters
    num_twice = is_kept_twice * model.vocab_size * model.hidden_size
    return model.num_parameters + num_twice + num_seeing


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
