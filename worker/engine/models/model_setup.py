"""A model as it is to run here: its number format, and how long its texts may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from shared.errors import ConfigError
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import DTypeName, EngineConfig

MAX_SMALL_PARAMETERS = 100_000_000

DTYPES: dict[DTypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_dtype(name: DTypeName, config: ModelConfig, *, on_gpu: bool) -> torch.dtype:
    """As configured. `auto` means:

    - float32 for models below 100 million parameters: they are not bound by memory, and in float32
      a token does not depend on how it was batched;
    - bfloat16 for larger checkpoints that are stored in 16 bits, on a GPU, and where the processor
      multiplies bfloat16 itself (AVX512-BF16 or AMX): half the memory to read for each token;
    - float32 everywhere else.
    """
    if name != "auto":
        return DTYPES[name]
    is_small = config.num_parameters < MAX_SMALL_PARAMETERS
    is_fast = on_gpu or has_fast_bfloat16()
    if is_small or config.stored_dtype == "float32" or not is_fast:
        return torch.float32
    return torch.bfloat16


def has_fast_bfloat16() -> bool:
    """Not only supported: done by the processor's own instructions."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """Chosen before weights are read."""

    config: ModelConfig
    dtype: torch.dtype  # of its weights
    max_context_len: int  # prompt and output of a request together

    @classmethod
    def choose(cls, engine: EngineConfig, model: ModelConfig, *, on_gpu: bool) -> Self:
        """As the engine's configuration says, or what suits the model. Raises ConfigError."""
        wanted, limit = engine.max_context_len, model.max_context_limit
        if wanted is not None and wanted > limit:
            raise ConfigError(f"max_context_len={wanted} is more than the model's {limit}")
        dtype = choose_dtype(engine.dtype, model, on_gpu=on_gpu)
        return cls(model, dtype, wanted or model.max_context_len)
