"""Checkpoints with the same shapes and other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from shared.checkpoint.model_files import ModelFiles
from tests.worker.io_stage import make_card
from worker.weights.checkpoint import Checkpoint
from worker.weights.worker_model import ServedWeights

DEMO_MODEL = Path(__file__).parents[2] / "deploy/demo_model/checkpoint"


def make_weights(revision: str) -> ServedWeights:
    """A name without files."""
    card = msgspec.structs.replace(make_card(), revision=revision)
    return ServedWeights(Checkpoint(ModelFiles(Path(), {}, {}), card, ""))


def read_checkpoint(path: Path) -> Checkpoint:
    return Checkpoint.read(ModelFiles.read(path), "m")


def copy_checkpoint(folder: Path, noise: int = 1, **config: Any) -> Path:
    """The demo model with noise in its first weights, and these values in its config.json."""
    shutil.copytree(DEMO_MODEL, folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for idx in range(start, min(start + 4096, len(data)), 2):
        data[idx] = (data[idx] + noise) % 256  # low bytes of bfloat16
    file.write_bytes(data)
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder
