"""The matrices of an adapter, by the module that they are put on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load

from shared.checkpoint.lora_files import LoraFiles, module_of


class LoraPair(NamedTuple):
    """What is added to a linear layer: x -> x @ down.T @ up.T."""

    down: torch.Tensor  # [rank, in_features]
    up: torch.Tensor  # [out_features, rank], scaled


LoraWeights = dict[str, LoraPair]  # by the module's name in the checkpoint


def read_lora_weights(path: Path, dtype: torch.dtype, max_rank: int) -> LoraWeights:
    """Raises ConfigError."""
    files = LoraFiles.read(path)
    files.check_rank(max_rank)
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load(files.weights).items():
        module, side = module_of(name)
        sides.setdefault(module, {})[side] = tensor.float()
    return {
        module: LoraPair(pair["A"].to(dtype), (pair["B"] * files.scale).to(dtype))
        for module, pair in sides.items()
    }
