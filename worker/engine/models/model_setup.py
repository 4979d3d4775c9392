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


def choose_dtype(name: DTypeName, config: ModelConfig, *, is_fast: bool) -> torch.dtype:
    """As configured. `auto` means:

    - float32 for models below 100 million parameters: they are not bound by memory, and in float32
      a token does not depend on how it was batched;
    - bfloat16 for larger checkpoints that are stored in 16 bits, where it `is_fast`: half the
      memory to read for each token;
    - float32 everywhere else.
    """
    if name != "auto":
        return DTYPES[name]
    is_small = config.num_parameters < MAX_SMALL_PARAMETERS
    if is_small or config.stored_dtype == "float32" or not is_fast:
        return torch.float32
    return torch.bfloat16


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """Chosen before weights are read."""

    config: ModelConfig
    dtype: torch.dtype  # of its weights
    max_context_len: int  # prompt and output of a request together

    @classmethod
    def choose(cls, engine: EngineConfig, model: ModelConfig, *, is_fast: bool) -> Self:
        """As the engine's configuration says, or what suits the model; `is_fast`: bfloat16 is, for
        this model here. Raises ConfigError.
        """
        wanted, limit = engine.max_context_len, model.max_context_limit
        if wanted is not None and wanted > limit:
            raise ConfigError(f"max_context_len={wanted} is more than the model's {limit}")
        dtype = choose_dtype(engine.dtype, model, is_fast=is_fast)
        return cls(model, dtype, wanted or model.max_context_len)
