"""The same model, with the same weights, as transformers computes it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.gpu.rig import Rig
from bench.gpu.shapes import SHAPES
from worker.engine.models.dummy_weights import fill_with_noise


def make_peer_model(rig: Rig) -> Any:
    """Weights are filled by their names, as the engine's are."""
    shape = dict(SHAPES[rig.task.model])
    dtype_words = ("torch_dtype", "architectures")
    config = AutoConfig.for_model(
        shape.pop("model_type"), **{k: v for k, v in shape.items() if k not in dtype_words}
    )
    with torch.device(rig.torch_device), torch.no_grad():
        model = AutoModelForCausalLM.from_config(
            config, dtype=rig.dtype, attn_implementation="sdpa"
        )
        for name, parameter in model.named_parameters():
            fill_with_noise(name, parameter.data)
    return model.eval()
