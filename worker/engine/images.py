"""Images in prompts: where they stand in a step, and what the vision tower makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from shared.protocol.model_cards import VisionCard
from worker.engine.models.model import ImageRows
from worker.engine.request.req_image import ReqImage
from worker.engine.request.schedule_batch import ScheduleBatch


class ImageSpan(NamedTuple):
    """Tokens [first, end) of an image."""

    image: ReqImage
    first: int
    end: int
    start: int  # index of the first of them in the step


def image_spans(batch: ScheduleBatch) -> tuple[ImageSpan, ...]:
    """Of the chunks that have tokens of images."""
    spans: list[ImageSpan] = []
    shift = batch.num_plain  # decoding requests are past their prompts
    for entry in batch.others:
        for image in entry.req.images:
            start, end = max(entry.start, image.start), min(entry.end, image.end)
            if start < end:
                place = shift + start - entry.start
                spans.append(ImageSpan(image, start - image.start, end - image.start, place))
        shift += entry.num_tokens
    return tuple(spans)


def cut_spans(spans: Sequence[ImageSpan], begin: int, end: int) -> tuple[ImageSpan, ...]:
    """Of the step's tokens [begin, end) alone."""
    parts: list[ImageSpan] = []
    for image, first, last, start in spans:
        skipped = max(0, begin - start)
        num_tokens = min(last - first, end - start) - skipped
        if num_tokens > 0:
            first += skipped
            parts.append(ImageSpan(image, first, first + num_tokens, start + skipped - begin))
    return tuple(parts)


class VisionTower(Protocol):
    """The part of a model that sees."""

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """[height, width, 3] uint8 -> [num_tokens, hidden_size], as the decoder takes them."""
        ...


class ImageEncoder:
    """Features wait here until the prefill has passed the image, or its request is gone.

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
        # [num_tokens, hidden_size] of each image with `is_encoded`
        self._waiting: WeakKeyDictionary[ReqImage, torch.Tensor] = WeakKeyDictionary()

    def rows(self, spans: Sequence[ImageSpan]) -> tuple[ImageRows, ...]:
        """What the decoder sees there."""
        found: list[ImageRows] = []
        for image, first, end, start in spans:
            features = self._features(image)
            found.append(ImageRows(start, features[first:end]))
            if end == len(features):
                del self._waiting[image]
                image.is_encoded = False
        return tuple(found)

    def _features(self, image: ReqImage) -> torch.Tensor:
        if not image.is_encoded:
            pixels = np.frombuffer(image.pixels, np.uint8).reshape(self._shape)
            self._waiting[image] = self._tower.image_features(self._place(pixels))
            image.is_encoded = True
        return self._waiting[image]

    def blank(self) -> torch.Tensor:
        """Of a black image: to see what one takes."""
        return self._tower.image_features(self._place(np.zeros(self._shape, np.uint8)))
