"""What a dtype is called in messages, cards and logs."""

from __future__ import annotations

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Without torch's name before it, like `bfloat16`."""
    return str(dtype).removeprefix("torch.")
