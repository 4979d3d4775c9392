"""Whether a model runs in our C++ or in torch."""

from __future__ import annotations

import torch

from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.native.native_library import NativeLibrary, NativeUnavailable
from worker.engine_link.engine_config import EngineConfig

GROUP_TOKENS = 16  # kGroupTokens of attention.h
MAX_HEAD_DIM = 256
# By name, as torch knows them. All but Cooper Lake's have both or none.
PROCESSOR_NEEDS = {"AVX512-BF16": "avx512_bf16", "AVX512-VBMI": "avx512_vbmi"}
ONE_ORDER = "each sum has one order, on every processor with AVX512-BF16"

log = get_logger(__name__)


def choose_native_library(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype
) -> NativeLibrary | None:
    """None for torch. Raises ConfigError when it must be native and cannot.

    Ours comes first also where the processor has AMX and oneDNN may be ahead of it: nothing of a
    token in our C++ depends on what is computed beside it.
    """
    if config.cpu_kernels == "torch":
        return None
    reason = native_obstacle(config, model, dtype)
    if reason is None:
        try:
            library = NativeLibrary.load()
        except NativeUnavailable as exc:
            reason = str(exc)
            if config.cpu_kernels == "auto":
                log.warning("native_kernels_unavailable", reason=reason)
        else:
            log.info("matrix_products", by="our C++", because=ONE_ORDER)
            return library
    if config.cpu_kernels == "native":
        raise ConfigError(f"cpu_kernels=native is not possible: {reason}")
    return None


def may_choose_native(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> bool:
    """Unless there is no library for it."""
    return config.cpu_kernels != "torch" and native_obstacle(config, model, dtype) is None


def native_obstacle(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why not, as far as model and processor are concerned."""
    if not isinstance(model, DecoderConfig):
        return f"{model.architecture} is computed by transformers"
    capabilities = torch.cpu.get_capabilities()
    if dtype is not torch.bfloat16:
        return f"it computes bfloat16, and dtype is {str(dtype).removeprefix('torch.')}"
    for name, key in PROCESSOR_NEEDS.items():
        if not capabilities.get(key):
            return f"the processor has no {name}"
    if config.page_size % GROUP_TOKENS:
        return f"page_size={config.page_size} is not a multiple of {GROUP_TOKENS}"
    if model.head_dim % 16 or model.head_dim > MAX_HEAD_DIM:
        return f"heads of {model.head_dim} values are not a multiple of 16, up to {MAX_HEAD_DIM}"
    if model.hidden_size % 2 or model.intermediate_size % 2:
        return "a hidden size is odd"
    return None
