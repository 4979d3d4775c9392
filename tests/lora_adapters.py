"""Small LoRA adapters with random weights, as PEFT writes them, and models merged with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.lora_files import LoraFiles

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(
    path: Path,
    model_path: Path,
    *,
    modules: Sequence[str] = MODULES,
    seed: int = 1,
    rank: int = 4,
    size: float = 0.15,
    **config: Any,
) -> Path:
    """On these modules of every layer, but of single experts; `size` is that of its values."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in sorted(load_weights(model_path).items()):
        module = name.removesuffix(".weight")
        is_of_one_expert = ".experts." in module
        if module.rpartition(".")[2] in modules and weight.ndim == 2 and not is_of_one_expert:
            prefix = f"base_model.model.{module}"
            down = torch.randn(rank, weight.shape[1], generator=generator)
            up = torch.randn(weight.shape[0], rank, generator=generator)
            tensors[f"{prefix}.lora_A.weight"] = size * down
            tensors[f"{prefix}.lora_B.weight"] = size * up
    save_adapter_files(path, tensors, **({"r": rank, "target_modules": list(modules)} | config))
    return path


def load_weights(model_path: Path) -> dict[str, torch.Tensor]:
    files = sorted(model_path.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def save_adapter_files(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "bias": "none",
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "init_lora_weights": True,
        "inference_mode": True,
        "lora_dropout": 0.1,
    }
    (path / "adapter_config.json").write_text(json.dumps(values | config))


def make_lora_files(path: Path, value: float) -> LoraFiles:
    """Of nothing but one value, for those who compute nothing with it."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    shape = (4, 4)
    tensors = {f"{prefix}.lora_{side}.weight": torch.full(shape, value) for side in "AB"}
    save_adapter_files(path, tensors)
    return LoraFiles.read(path)


def save_merged(path: Path, model_path: Path, adapter_path: Path, scale: float) -> Path:
    """The model with the adapter added to its weights."""
    shutil.copytree(model_path, path, dirs_exist_ok=True)
    weights = load_file(model_path / "model.safetensors")
    adapter = load_file(adapter_path / "adapter_model.safetensors")
    for name, down in adapter.items():
        if name.endswith(".lora_A.weight"):
            up = adapter[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weights[f"{module}.weight"] += scale * (up @ down)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path
