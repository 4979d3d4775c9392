"""The towers of Qwen2-VL, 2.5 and 3, and of Qwen 3.5, which see a moment of a video as an image."""

from __future__ import annotations

from typing import Any

import torch

from shared.protocol.image_sizes import PixelSize


def qwen_vl_features(model: Any, image: torch.Tensor, size: PixelSize) -> torch.Tensor:
    """[3, num_frames * height, width] -> [1, num_features, hidden_size]."""
    patches, grid = qwen_vl_patches(model.config.vision_config, image, size)
    (features,) = model.get_image_features(patches, image_grid_thw=grid).pooler_output
    return torch.Tensor(features[None])


def qwen3_vl_features(model: Any, image: torch.Tensor, size: PixelSize) -> torch.Tensor:
    """[3, num_frames * height, width] -> [1 + num_deep, num_features, hidden_size]: first layers
    of the text add what some layers of the tower saw.
    """
    patches, grid = qwen_vl_patches(model.config.vision_config, image, size)
    seen = model.get_image_features(patches, image_grid_thw=grid)
    (features,) = seen.pooler_output
    return torch.stack([features, *(deep for (deep,) in seen.deepstack_features)])


def qwen_vl_patches(
    vision: Any, image: torch.Tensor, size: PixelSize
) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_patches, values of a patch], those of a feature one after the other; and the grid of
    patches, [1, 3]. A still image fills all frames of a patch.
    """
    side, merged = vision.patch_size, vision.spatial_merge_size
    num_frames = vision.temporal_patch_size
    rows, cols = size.height // side, size.width // side
    frames = image.reshape(len(image), -1, *size).expand(-1, num_frames, -1, -1)
    patches = frames.reshape(
        len(image), num_frames, rows // merged, merged, side, cols // merged, merged, side
    ).permute(2, 5, 3, 6, 0, 1, 4, 7)
    grid = torch.tensor([[1, rows, cols]], device=image.device)
    return patches.reshape(rows * cols, -1), grid
