"""Images of a step's prompts: through the vision tower, once each."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.engine.model_input import ImageRows
from worker.engine.req_image import ReqImage
from worker.engine.schedule_batch import ScheduleBatch


class VisionTower(Protocol):
    """The part of a model that sees."""

    def image_features(self, pixels: bytes) -> torch.Tensor:
        """[height, width, 3] uint8 -> [num_tokens, hidden_size], as the decoder takes them."""
        ...


class ImageEncoder:
    """Features wait in the request until its prefill has passed the image.

    A cached prefix needs none; a request that was retracted computes them anew.
    """

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower

    def rows(self, batch: ScheduleBatch) -> tuple[ImageRows, ...]:
        """Of the chunks that have tokens of images."""
        found: list[ImageRows] = []
        shift = batch.num_plain  # decoding requests are past their prompts
        for entry in batch.others:
            for image in entry.req.images:
                start, end = max(entry.start, image.start), min(entry.end, image.end)
                if start < end:
                    rows = self._features(image)[start - image.start : end - image.start]
                    found.append(ImageRows(shift + start - entry.start, rows))
                if image.end <= entry.end:
                    image.features = None
            shift += entry.num_tokens
        return tuple(found)

    def _features(self, image: ReqImage) -> torch.Tensor:
        if image.features is None:
            image.features = self._tower.image_features(image.pixels)
        return image.features
