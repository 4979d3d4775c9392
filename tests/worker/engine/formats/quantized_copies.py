"""Checkpoints whose projections are quantised, and the same made dense."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.worker.engine.formats.stored_kinds import KINDS, Stored

PROJECTION = re.compile(
    r"(model\.layers\.\d+\.(?:self_attn|mlp|feed_forward)(?:\.experts\.\d+|\.shared_experts)?"
    r"\.(?:\w+_proj(?:_with_mqa)?|w[123]))\.weight"
)


def save_quantized(source: Path, target: Path, kind: str) -> Path:
    """All projections of its layers, as `kind` stores them."""
    section, name = KINDS[kind].section, KINDS[kind].name
    _copy(source, target, {name: part.tensors for name, part in _stored(source, kind).items()})
    if name.endswith(".json"):
        (target / name).write_text(
            json.dumps({"producer": {"name": "modelopt"}, "quantization": section})
        )
    else:
        change_config(target, **{name: section})
    return target


def save_dense(source: Path, target: Path, kind: str) -> Path:
    """What `save_quantized` stands for, in float32."""
    stored = _stored(source, kind)
    return _copy(
        source, target, {name: {f"{name}.weight": part.values} for name, part in stored.items()}
    )


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_tensors(folder: Path, **changed: torch.Tensor | None) -> None:
    """By names with `__` in place of dots; None: it goes."""
    tensors = load_file(folder / "model.safetensors")
    for key, tensor in changed.items():
        name = key.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def _stored(source: Path, kind: str) -> dict[str, Stored]:
    """By module."""
    return {
        match[1]: KINDS[kind].store(match[1], tensor.float())
        for name, tensor in load_file(source / "model.safetensors").items()
        if (match := PROJECTION.fullmatch(name))
    }


def _copy(source: Path, target: Path, modules: dict[str, dict[str, torch.Tensor]]) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    for module, parts in modules.items():
        del tensors[f"{module}.weight"]
        tensors |= {name: tensor.contiguous() for name, tensor in parts.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target
