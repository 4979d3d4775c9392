"""A model as it is to run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from shared.errors import ConfigError
from worker.engine.models.dtype_choice import choose_dtype
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import EngineConfig


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
