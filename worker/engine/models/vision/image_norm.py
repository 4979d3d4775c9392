"""What becomes of pixels before a tower sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from shared.protocol.sight_card import SightCard


@dataclass(frozen=True, slots=True)
class ImageNorm:
    """Scales each colour."""

    rescale_factor: float
    mean: torch.Tensor  # [3] float32
    std: torch.Tensor

    @classmethod
    def of(cls, sight: SightCard, device: torch.device) -> Self:
        mean, std = (torch.tensor(each).to(device) for each in (sight.mean, sight.std))
        return cls(sight.rescale_factor, mean, std)

    def apply(self, pixels: torch.Tensor) -> torch.Tensor:
        """[height, width, 3] uint8 -> [3, height, width] float32."""
        image = (pixels.float() * self.rescale_factor - self.mean) / self.std
        return image.permute(2, 0, 1)
