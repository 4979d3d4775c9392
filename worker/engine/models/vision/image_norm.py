"""What becomes of pixels before a tower sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from shared.protocol.sight_card import SightCard
from shared.protocol.video_card import VideoCard


@dataclass(frozen=True, slots=True)
class ImageNorm:
    """Scales each colour, in the dtype of `mean`."""

    rescale_factor: float
    mean: torch.Tensor  # [3]
    std: torch.Tensor

    @classmethod
    def of(
        cls,
        card: SightCard | VideoCard,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        mean, std = (torch.tensor(each, dtype=dtype).to(device) for each in (card.mean, card.std))
        return cls(card.rescale_factor, mean, std)

    def apply(self, pixels: torch.Tensor) -> torch.Tensor:
        """[height, width, 3] uint8 -> [3, height, width]."""
        image = (pixels.to(self.mean.dtype) * self.rescale_factor - self.mean) / self.std
        return image.permute(2, 0, 1)
