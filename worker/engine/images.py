"""Images in prompts, and moments of videos and windows of audio, which are images here: where they
stand in a step, and what the tower makes of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from shared.protocol.hearing_card import WINDOW_FRAMES
from shared.protocol.image_sizes import PixelSize
from shared.protocol.sight_card import SightCard
from worker.engine.models.model import ImageRows
from worker.engine.models.rope_config import NUM_AXES
from worker.engine.request.req_image import ReqImage
from worker.engine.request.schedule_batch import ScheduleBatch


class ImageSpan(NamedTuple):
    """Tokens [first, end) of an image."""

    image: ReqImage
    first: int
    end: int
    start: int  # index of the first of them in the step


def image_spans(batch: ScheduleBatch) -> tuple[ImageSpan, ...]:
    """The spans of the chunks that have tokens of images."""
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
    """The spans of the step's tokens [begin, end) alone."""
    parts: list[ImageSpan] = []
    for image, first, last, start in spans:
        skipped = max(0, begin - start)
        num_tokens = min(last - first, end - start) - skipped
        if num_tokens > 0:
            first += skipped
            parts.append(ImageSpan(image, first, first + num_tokens, start + skipped - begin))
    return tuple(parts)


def axis_positions(batch: ScheduleBatch) -> torch.Tensor | None:
    """Time, row and column of each token of a step, [3, num_tokens] int64. None: no request of it
    has an image, so that all three are the places of the tokens.
    """
    if not any(entry.req.images for entry in batch.entries):
        return None
    parts = [_axes(entry.req.images, entry.start, entry.end) for entry in batch.entries]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _axes(images: Sequence[ReqImage], start: int, end: int) -> npt.NDArray[np.int64]:
    """The positions of a request's tokens [start, end). Features of an image share its time; what
    follows it goes on behind its longest side.
    """
    axes = np.tile(np.arange(start, end), (NUM_AXES, 1))
    before = bisect_right(images, start, key=lambda image: image.end)
    if before:  # decoding requests are past all of them
        axes += images[before - 1].next_position - images[before - 1].end
    for image in images[before:]:
        if image.start >= end:
            break
        first, last = max(start, image.start), min(end, image.end)
        rows, cols = np.divmod(np.arange(first, last) - image.start, image.grid.cols)
        axes[:, first - start : last - start] = image.position + np.stack(
            [np.full_like(rows, image.time), rows, cols]
        )
        axes[:, last - start :] = image.next_position + np.arange(end - last)
    return axes


def reach(batch: ScheduleBatch) -> torch.Tensor | None:
    """The last position that each token of a step sees, [num_tokens] int64: the tokens of an image
    see all of it. None: there are none.
    """
    if not image_spans(batch):
        return None
    parts = []
    for entry in batch.entries:
        last_seen = np.arange(entry.start, entry.end)
        for image in entry.req.images:
            first, last = max(entry.start, image.start), min(entry.end, image.end)
            if first < last:
                last_seen[first - entry.start : last - entry.start] = image.end - 1
        parts.append(last_seen)
    return torch.from_numpy(np.concatenate(parts))


class KeptFeatures:
    """What the tower made of images lately, for runs of the same namespace: nobody else can tell,
    by time, that an image has been seen. The least recently used go first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._features: OrderedDict[tuple[bytes, bytes], torch.Tensor] = OrderedDict()

    def get(self, image: ReqImage) -> torch.Tensor | None:
        key = image.namespace, image.digest
        if key in self._features:
            self._features.move_to_end(key)
        return self._features.get(key)

    def put(self, image: ReqImage, features: torch.Tensor) -> None:
        """Those of one that is not there."""
        if features.nbytes > self._max_bytes:
            return
        self._features[image.namespace, image.digest] = features
        self._num_bytes += features.nbytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._features.popitem(last=False)
            self._num_bytes -= oldest.nbytes


class VisionTower(Protocol):
    """The part of a model that sees."""

    def image_features(
        self, pixels: torch.Tensor, size: PixelSize, num_frames: int = 0
    ) -> torch.Tensor:
        """[height, width, 3] uint8, of the size's `array_size`, or so many frames of the size, one
        below the other -> [1 + num_deep, num_features, hidden_size]: what the decoder takes in
        place of embeddings, and what it adds behind its first layers.
        """
        ...


class Ear(Protocol):
    """The part of a model that hears."""

    def sound_features(self, frames: torch.Tensor, num_frames: int) -> torch.Tensor:
        """[WINDOW_FRAMES, num_mel_bins] float32, of which `num_frames` are no silence ->
        [1, num_features, hidden_size].
        """
        ...


class ImageEncoder:
    """Features wait here until the prefill has passed the image, or its request is gone; and as
    long as there is room, for others that know of the image.

    A cached prefix needs none.
    """

    def __init__(
        self,
        tower: VisionTower,
        sight: SightCard | None,
        ear: Ear | None = None,
        place: Callable[[npt.NDArray[Any]], torch.Tensor] = torch.tensor,  # where the tower is
        max_kept_bytes: int = 0,
    ) -> None:
        self._tower = tower
        self._ear = ear
        self._sight = sight
        self._place = place
        self._kept = KeptFeatures(max_kept_bytes)
        # Of each image with `is_encoded`, as the tower gives them.
        self._waiting: WeakKeyDictionary[ReqImage, torch.Tensor] = WeakKeyDictionary()

    def rows(self, spans: Sequence[ImageSpan]) -> tuple[ImageRows, ...]:
        """What the decoder sees there."""
        found: list[ImageRows] = []
        for image, first, end, start in spans:
            features = self._features(image)
            feature_idx = image.feature_idx[first:end]
            (places,) = np.nonzero(feature_idx >= 0)
            if len(places):
                rows = features[:, feature_idx[places[0]] : feature_idx[places[-1]] + 1]
                found.append(ImageRows(self._place(start + places), rows))
            if end == len(image.feature_idx):
                del self._waiting[image]
                image.is_encoded = False
        return tuple(found)

    def axis_positions(self, batch: ScheduleBatch) -> torch.Tensor | None:
        """Positions of a model whose positions have three axes, where they differ in this step."""
        return axis_positions(batch) if self._sight and self._sight.has_axes else None

    def reach(self, batch: ScheduleBatch) -> torch.Tensor | None:
        """[num_tokens] int64, the last position that each token sees. None: its own."""
        return reach(batch) if self._sight and self._sight.is_mutual else None

    def _features(self, image: ReqImage) -> torch.Tensor:
        if not image.is_encoded:
            self._waiting[image] = self._found(image)
            image.is_encoded = True
        return self._waiting[image]

    def _found(self, image: ReqImage) -> torch.Tensor:
        features = self._kept.get(image)
        if features is None:
            features = self._heard(image) if image.num_sound_frames else self._seen(image)
            self._kept.put(image, features)
        return features

    def _seen(self, image: ReqImage) -> torch.Tensor:
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(*image.array_size, 3)
        return self._tower.image_features(self._place(pixels), image.size, image.num_frames)

    def _heard(self, image: ReqImage) -> torch.Tensor:
        assert self._ear is not None, "the model takes no audio"
        frames = np.frombuffer(image.pixels, "<f4").reshape(image.array_size)
        window = np.pad(frames, ((0, WINDOW_FRAMES - len(frames)), (0, 0)), mode="edge")
        return self._ear.sound_features(self._place(window), image.num_sound_frames)

    def blank(self) -> torch.Tensor:
        """The features of a black image: to see what the largest takes."""
        assert self._sight is not None, "nothing is heard on a GPU"
        size = self._sight.size.most
        pixels = np.zeros((*self._sight.size.array_size(size), 3), np.uint8)
        return self._tower.image_features(self._place(pixels), size)
