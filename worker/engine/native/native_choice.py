"""Whether a model runs in our C++ or in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shared.checkpoint.stored_format import ActivationsName
from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.engine.formats.scaled_weight import KEPT_INPUTS, InputCodes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.native.kernel_set import KERNEL_SETS, NAMED_KERNEL_SETS, KernelSet
from worker.engine.native.native_library import NativeLibrary, NativeUnavailable, is_at_hand
from worker.engine_link.engine_config import EngineConfig

GROUP_TOKENS = 16  # kGroupTokens of kv_pool.h
MAX_HEAD_DIM = 512  # kMaxHeadDim of kv_pool.h
ROUNDED_INPUTS = 128  # that share a scale, where a checkpoint does not tell
_INPUTS: Mapping[ActivationsName, InputCodes | None] = {
    "auto": None,
    "int8": InputCodes(ROUNDED_INPUTS),
    "bfloat16": KEPT_INPUTS,
}
ONE_ORDER = "each sum has one order, on every processor of its kernel set"

log = get_logger(__name__)


def choose_native_library(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype
) -> NativeLibrary | None:
    """None for torch. Raises ConfigError when it must be native and cannot.

    Ours comes first also where oneDNN may be ahead of it: nothing of a token in our C++ depends on
    what is computed beside it.
    """
    if config.cpu_kernels == "torch":
        return None
    reason = native_obstacle(config, model, dtype)
    if reason is None:
        library, reason = _load_first(_candidates(config))
        if library is not None:
            name = library.kernel_set.name
            log.info("matrix_products", by="our C++", because=ONE_ORDER, kernel_set=name)
            return library
        if config.cpu_kernels == "auto":
            log.warning("native_kernels_unavailable", reason=reason)
    if config.cpu_kernels != "auto":
        raise ConfigError(f"cpu_kernels={config.cpu_kernels} is not possible: {reason}")
    return None


def choose_product_library(config: EngineConfig) -> NativeLibrary | None:
    """The library for a model of which `may_multiply_codes`; None where torch computes all."""
    library, reason = _load_first(_candidates(config))
    if library is None:
        log.warning("native_kernels_unavailable", reason=reason)
        return None
    name = library.kernel_set.name
    log.info("coded_products", by="our C++", because=ONE_ORDER, kernel_set=name)
    return library


def may_multiply_codes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether our C++ multiplies what is in codes of a model that torch computes, unless there is
    no library for it.
    """
    return (
        bool(model.coded_values)
        and config.load_format != "dummy"
        and config.cpu_kernels != "torch"
        and dtype is torch.bfloat16
        and bool(_candidates(config))
    )


def wanted_inputs(config: EngineConfig) -> InputCodes | None:
    """The inputs of weights whose format does not tell, or of all; None: as formats say."""
    return _INPUTS[config.cpu_activations]


def missing_capability(kernel_set: KernelSet) -> str:
    """The first that this processor lacks, or nothing."""
    capabilities = torch.cpu.get_capabilities()
    return next((name for name, key in kernel_set.needs if not capabilities.get(key)), "")


def _candidates(config: EngineConfig) -> list[KernelSet]:
    """The kernel sets of this processor that may be chosen, the best one first."""
    named = [each for each in NAMED_KERNEL_SETS if each.name == config.cpu_kernels]
    return [each for each in named or KERNEL_SETS if not missing_capability(each)]


def _load_first(kernel_sets: list[KernelSet]) -> tuple[NativeLibrary | None, str]:
    """The first that can be loaded; otherwise why the last could not."""
    reason = ""
    for kernel_set in kernel_sets:
        try:
            return NativeLibrary.load(kernel_set), ""
        except NativeUnavailable as exc:
            reason = str(exc)
            log.warning("kernel_set_unavailable", kernel_set=kernel_set.name, reason=reason)
    return None, reason


def has_fast_bfloat16(config: EngineConfig, model: ModelConfig) -> bool:
    """Whether the processor has instructions for it, whoever computes; or our C++ does, which
    widens it as fast as it comes from memory.
    """
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
        return True
    return may_choose_native(config, model, torch.bfloat16) and any(
        is_at_hand(each) for each in _candidates(config)
    )


def may_choose_native(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> bool:
    """Unless there is no library for it."""
    return config.cpu_kernels != "torch" and native_obstacle(config, model, dtype) is None


def native_obstacle(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why not, as far as model and processor are concerned."""
    if not isinstance(model, DecoderConfig):
        return f"{model.architecture} is computed by transformers"
    if model.beyond_native is not None:
        return f"{model.beyond_native} ({model.architecture}) is computed in torch alone"
    if dtype is not torch.bfloat16:
        return f"it computes bfloat16, and dtype is {str(dtype).removeprefix('torch.')}"
    if not _candidates(config):
        return f"the processor has no {_missing(config)}"
    if config.page_size % GROUP_TOKENS:
        return f"page_size={config.page_size} is not a multiple of {GROUP_TOKENS}"
    for head_dim in {layer.head_dim for layer in model.attention_layers}:
        if head_dim % 16 or head_dim > MAX_HEAD_DIM:
            return f"heads of {head_dim} values are not a multiple of 16, up to {MAX_HEAD_DIM}"
    if any(size % 2 for size in (model.hidden_size, model.intermediate_size, *model.mlp_sizes)):
        return "a hidden size is odd"
    return None


def _missing(config: EngineConfig) -> str:
    """The capability that the wanted kernel set lacks, or the one with the fewest needs."""
    named = [each for each in NAMED_KERNEL_SETS if each.name == config.cpu_kernels]
    return missing_capability((named or KERNEL_SETS)[-1])
