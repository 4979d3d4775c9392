"""A model of transformers with weights from a GGUF file, which its own loader does not see."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from shared.errors import ConfigError
from worker.engine.models.expert_modules import PlacedExperts
from worker.engine.models.expert_weights import ExpertProducts
from worker.engine.models.gguf_experts import find_gguf_experts
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.loader import OnProgress
from worker.engine.models.transformers_config import MODEL_ERRORS, make_model


def load_from_gguf(
    hf_config: Any,
    model_path: Path,
    dtype: torch.dtype,
    on_progress: OnProgress,
    device: torch.device,
    experts: ExpertProducts | None = None,
) -> Any:
    """Each tensor goes into its place as soon as it is read. Raises ConfigError."""
    from transformers.initialization import no_init_weights

    with GgufReader(model_path, dtype, on_progress, torch.get_num_threads()) as reader:
        try:
            placed = PlacedExperts({})
            if experts is not None:
                placed = PlacedExperts.of(hf_config, dtype, find_gguf_experts(reader))
            with device, no_init_weights():
                model = make_model(copy.deepcopy(hf_config), dtype)
            placed.put_into(model)
            model.tie_weights()
        except MODEL_ERRORS as exc:
            raise ConfigError(f"cannot load {model_path}: {exc}") from exc
        for name, parameter in model.named_parameters():
            parameter.data.copy_(reader.read(name, *parameter.shape))
        if experts is not None:
            placed.read(model, experts)
    return model
