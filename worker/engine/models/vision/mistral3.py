"""The tower of Mistral 3: Pixtral's, whose patches are merged and projected."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def mistral3_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1, num_features, hidden_size]."""
    sizes = torch.tensor([image.shape[1:]])
    (features,) = model.get_image_features(image[None], image_sizes=sizes).pooler_output
    return torch.Tensor(features[None])
