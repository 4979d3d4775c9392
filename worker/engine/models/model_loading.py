"""From a configuration to a model with its weights."""

from __future__ import annotations

from pathlib import Path

import torch

from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.loader import CheckpointReader, OnProgress
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.transformers_config import TransformersConfig
from worker.engine.models.transformers_model import load_transformers_model
from worker.engine.torch_forward import Model


def load_model(
    config: ModelConfig,
    model_path: Path,
    dtype: torch.dtype,
    max_context_len: int,
    on_progress: OnProgress,
) -> Model:
    """Raises ConfigError for a checkpoint that does not fit its configuration."""
    if isinstance(config, TransformersConfig):
        return load_transformers_model(config, model_path, dtype, max_context_len, on_progress)
    assert isinstance(config, DecoderConfig)
    with CheckpointReader(model_path, dtype, on_progress) as reader:
        return DecoderModel(config, reader, dtype, max_context_len)
