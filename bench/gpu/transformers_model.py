"""The same model, with the same weights, as transformers computes it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.gpu.rig import Rig
from bench.gpu.shapes import SHAPES
from worker.engine.models.dummy_weights import fill_with_noise


def make_peer_model(rig: Rig, dtype: torch.dtype | None = None) -> Any:
    """Weights are filled by their names, as the engine's are; in its dtype, or rounded so."""
    shape = dict(SHAPES[rig.task.model])
    dtype_words = ("torch_dtype", "architectures")
    config = AutoConfig.for_model(
        shape.pop("model_type"), **{k: v for k, v in shape.items() if k not in dtype_words}
    )
    with torch.device(rig.torch_device), torch.no_grad():
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype or rig.dtype, attn_implementation="sdpa"
        )
        for name, parameter in model.named_parameters():
            noise = torch.empty_like(parameter, dtype=rig.dtype)
            parameter.copy_(fill_with_noise(name, noise))
    if rig.is_gpu:
        torch.cuda.synchronize()  # others' threads have streams of their own
    return model.eval()
