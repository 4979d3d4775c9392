"""What is told of weights that are stored in fewer bits than they are computed in."""

from __future__ import annotations

from pathlib import Path

import torch

from worker.engine.models.model_config import ModelConfig


def told_of_stored_weights(model_path: Path, model: ModelConfig, dtype: torch.dtype) -> str:
    """In a clause, for people; empty for weights in 16 or 32 bits."""
    if not model.quantization:
        return ""
    num_bytes = sum(file.stat().st_size for file in model_path.glob("*.safetensors"))
    size = ""
    if num_bytes:  # else they were not fetched yet
        bits = 8 * num_bytes / model.num_parameters
        size = f" ({bits:.1f} bits each, {num_bytes / (1 << 30):.2f} GiB)"
    return (
        f"weights are stored in {model.quantization}{size} and computed in "
        f"{str(dtype).removeprefix('torch.')}, whose memory they take"
    )
