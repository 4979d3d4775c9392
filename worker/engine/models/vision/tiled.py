"""The towers of models that read tiles."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def internvl_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, num_tiles * tile, tile] -> [1, num_features, hidden_size], tile by tile."""
    features = model.get_image_features(_tiles(image)).pooler_output
    return torch.Tensor(features.flatten(0, 1)[None])


def anyres_features(model: Any, image: torch.Tensor, size: PixelSize) -> torch.Tensor:
    """[3, num_tiles * tile, tile] -> [1, num_features, hidden_size]: of the whole image, then row
    by row of the tiles, without what is black.
    """
    sizes = torch.tensor([size])
    (features,) = model.get_image_features(_tiles(image), image_sizes=sizes).pooler_output
    return torch.Tensor(features[None])


def idefics3_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, num_tiles * tile, tile] -> [1, num_features, hidden_size], tile by tile."""
    seen = model.model.vision_model(_tiles(image)).last_hidden_state
    return torch.Tensor(model.model.connector(seen).flatten(0, 1)[None])


def llama4_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, num_tiles * tile, tile] -> [1, num_features, hidden_size], tile by tile."""
    seen = model.get_image_features(_tiles(image)).last_hidden_state
    return torch.Tensor(model.multi_modal_projector(seen.flatten(0, 1))[None])


def _tiles(image: torch.Tensor) -> torch.Tensor:
    """[3, num_tiles * tile, tile] -> [num_tiles, 3, tile, tile]."""
    colours, height, side = image.shape
    return image.reshape(colours, height // side, side, side).transpose(0, 1)
