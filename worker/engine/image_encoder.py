"""Images of a step's prompts: through the vision tower, once each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from shared.protocol.model_cards import VisionCard
from worker.engine.image_span import ImageSpan
from worker.engine.model_input import ImageRows
from worker.engine.req_image import ReqImage


class VisionTower(Protocol):
    """The part of a model that sees."""

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """[height, width, 3] uint8 -> [num_tokens, hidden_size], as the decoder takes them."""
        ...


class ImageEncoder:
    """Features wait in the request until its prefill has passed the image.

    A cached prefix needs none; a request that was retracted computes them anew.
    """

    def __init__(
        self,
        tower: VisionTower,
        vision: VisionCard,
        place: Callable[[npt.NDArray[Any]], torch.Tensor] = torch.tensor,  # where the tower is
    ) -> None:
        self._tower = tower
        self._shape = (vision.height, vision.width, 3)
        self._place = place

    def rows(self, spans: Sequence[ImageSpan]) -> tuple[ImageRows, ...]:
        """What the decoder sees there."""
        found: list[ImageRows] = []
        for image, first, end, start in spans:
            features = self._features(image)
            found.append(ImageRows(start, features[first:end]))
            if end == len(features):
                image.features = None
        return tuple(found)

    def _features(self, image: ReqImage) -> torch.Tensor:
        if image.features is None:
            pixels = np.frombuffer(image.pixels, np.uint8).reshape(self._shape)
            image.features = self._tower.image_features(self._place(pixels))
        return image.features

    def blank(self) -> torch.Tensor:
        """Of a black image: to see what one takes."""
        return self._tower.image_features(self._place(np.zeros(self._shape, np.uint8)))
