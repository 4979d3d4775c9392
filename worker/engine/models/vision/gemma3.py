"""The tower of Gemma 3: SigLIP, pooled and projected."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def gemma3_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1, num_features, hidden_size]."""
    return torch.Tensor(model.get_image_features(image[None]).pooler_output)
