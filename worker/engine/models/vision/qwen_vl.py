"""The towers of Qwen2-VL, 2.5 and 3, and of Qwen 3.5."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def qwen_vl_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1, num_features, hidden_size]."""
    patches, grid = qwen_vl_patches(model.config.vision_config, image)
    (features,) = model.get_image_features(patches, image_grid_thw=grid).pooler_output
    return torch.Tensor(features[None])


def qwen3_vl_features(model: Any, image: torch.Tensor, _: PixelSize) -> torch.Tensor:
    """[3, height, width] -> [1 + num_deep, num_features, hidden_size]: the first layers of the text
    add what some layers of the tower saw.
    """
    patches, grid = qwen_vl_patches(model.config.vision_config, image)
    seen = model.get_image_features(patches, image_grid_thw=grid)
    (features,) = seen.pooler_output
    return torch.stack([features, *(deep for (deep,) in seen.deepstack_features)])


def qwen_vl_patches(vision: Any, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_patches, values of a patch], those of a feature one after the other; and the grid of
    patches, [1, 3]. A still image fills all moments of a patch.
    """
    size, merged = vision.patch_size, vision.spatial_merge_size
    colours, height, width = image.shape
    rows, cols = height // size, width // size
    cells = image.reshape(
        colours, rows // merged, merged, size, cols // merged, merged, size
    ).permute(1, 4, 2, 5, 0, 3, 6)
    moments = cells[:, :, :, :, :, None].expand(
        *cells.shape[:5], vision.temporal_patch_size, size, size
    )
    grid = torch.tensor([[1, rows, cols]], device=image.device)
    return moments.reshape(rows * cols, -1), grid
