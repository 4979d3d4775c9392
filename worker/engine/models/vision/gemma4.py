"""The towers of Gemma 4, which pool patches or embed cells as they are."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def gemma4_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1, num_features, hidden_size]."""
    return _features(model, image, model.config.vision_config.patch_size)


def gemma4_unified_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1, num_features, hidden_size]."""
    return _features(model, image, model.config.vision_config.model_patch_size)


def _features(model: Any, image: torch.Tensor, side: int) -> torch.Tensor:
    """The features of squares of so many pixels, row by row."""
    colours, height, width = image.shape
    rows, cols = height // side, width // side
    squares = image.reshape(colours, rows, side, cols, side).permute(1, 3, 2, 4, 0)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(cols)).flip(1)
    (features,) = model.get_image_features(
        squares.reshape(1, rows * cols, -1), image_position_ids=places[None].to(image.device)
    ).pooler_output
    return torch.Tensor(features[None])
