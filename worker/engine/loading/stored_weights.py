"""What is told of weights that are stored in fewer bits than they are computed in."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.checkpoint.model_files import weight_files
from shared.checkpoint.stored_format import made_format
from worker.engine.device.dtype_name import dtype_name
from worker.engine.models.model_config import ModelConfig


def weights_format(model: ModelConfig, dtype: torch.dtype) -> str:
    """In few words, for people: "bfloat16", "gptq 4-bit" or "fp8 by channel, made when loaded"."""
    if model.made_format is not None:
        told = made_format(model.made_format)
        return f"experts {told}" if model.num_expert_values else told
    return model.quantization or dtype_name(dtype)


def remark_on_stored_weights(
    model_path: Path, model: ModelConfig, dtype: torch.dtype, coded_share: float | None
) -> str:
    """In a clause, for people; empty for weights in 16 or 32 bits.

    `coded_share`: of those of the layers, what is multiplied in its codes; None: known when they
    are loaded.
    """
    if model.made_format is not None:
        what = "experts" if model.num_expert_values else "weights"
        told = f"{what} are {made_format(model.made_format)}"
        return f"{told} and {_computed(dtype, coded_share, 'such')}"
    if not model.quantization:
        return ""
    num_bytes = sum(file.stat().st_size for file in weight_files(model_path))
    size = ""
    if num_bytes:  # else they were not fetched yet
        bits = 8 * num_bytes / model.num_parameters
        size = f" ({bits:.1f} bits each, {num_bytes / (1 << 30):.2f} GiB)"
    computed = _computed(dtype, coded_share, "they are stored")
    return f"weights are stored in {model.quantization}{size} and {computed}"


def _computed(dtype: torch.dtype, coded_share: float | None, codes: str) -> str:
    dense = f"computed in {dtype_name(dtype)}, whose memory they take"
    if coded_share is None:
        return f"multiplied as {codes} where our C++ has a layout for them"
    if coded_share == 0.0:
        return dense
    if coded_share == 1.0:
        return f"multiplied as {codes}"
    return f"{coded_share:.0%} of them multiplied as {codes}, the others {dense}"
