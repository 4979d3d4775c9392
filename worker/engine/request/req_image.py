"""An image in a prompt, as the engine holds it, and whether it is what the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.protocol.image_sizes import FixedSize, ImageGrid, PixelSize
from shared.protocol.sight_card import SightCard
from worker.engine_link.engine_messages import AddRequest, RunImage

_START_BYTES = 4


@dataclass(slots=True, weakref_slot=True, eq=False)
class ReqImage:
    """Stands in the place of the prompt's tokens [start, end)."""

    start: int
    end: int
    size: PixelSize
    array_size: PixelSize  # of its pixels
    grid: ImageGrid  # of what the tower makes of it
    feature_idx: npt.NDArray[np.int64]  # [end - start], of each token; -1: it is not of the tower
    digest: bytes
    pixels: bytes  # [height, width, 3] uint8
    namespace: bytes  # only runs with an equal one share what has been made of it
    is_mutual: bool  # its tokens see each other: no prefill chunk ends within it
    # Between the first and the last prefill chunk that has tokens of it: the encoder keeps what the
    # vision tower made of it.
    is_encoded: bool = field(default=False, init=False)

    @classmethod
    def of(cls, image: RunImage, sight: SightCard, namespace: bytes) -> ReqImage:
        """Of one that `Eyes.error` has found right."""
        size = _size(image, sight)
        grid = sight.size.grid(size)
        assert grid is not None, "its size has been checked"
        is_feature = np.array(sight.image_ids(size)) == sight.image_token_id
        feature_idx = np.where(is_feature, is_feature.cumsum() - 1, -1)
        end = image.start + image.num_tokens
        return cls(
            image.start,
            end,
            size,
            sight.size.array_size(size),
            grid,
            feature_idx,
            image.digest,
            image.pixels,
            namespace,
            sight.is_mutual,
        )

    @property
    def page_mark(self) -> bytes:
        """What the key of a page with tokens of it ends with: where it begins, and what it is."""
        return self.start.to_bytes(_START_BYTES, "little") + self.digest


@dataclass(frozen=True, slots=True)
class Eyes:
    """How an engine sees."""

    sight: SightCard | None = None  # None: not at all
    obstacle: str = ""  # why it does not, though the model could

    def images(self, command: AddRequest) -> list[ReqImage]:
        """Those of a run that `error` has found right."""
        if self.sight is None:
            return []
        namespace = command.options.namespace
        return [ReqImage.of(image, self.sight, namespace) for image in command.images]

    def error(self, command: AddRequest) -> str | None:
        """What is wrong with the images of a run; None when nothing is."""
        if not command.images:
            return None
        if self.sight is None or self.obstacle:
            return self.obstacle or "the model takes no images"
        return _error(command.images, len(command.prompt_ids) // 4, self.sight)


def _error(images: Sequence[RunImage], num_prompt_tokens: int, sight: SightCard) -> str | None:
    end = 0
    for idx, image in enumerate(images):
        if image.start < end or image.start + image.num_tokens > num_prompt_tokens:
            return f"image {idx} stands at token {image.start}, where it cannot"
        size = _size(image, sight)
        if sight.size.grid(size) is None:
            return f"image {idx} has {size.width} x {size.height} pixels, as none of the model's"
        array = sight.size.array_size(size)
        num_tokens, num_bytes = len(sight.image_ids(size)), 3 * array.height * array.width
        if image.num_tokens != num_tokens:
            return f"image {idx} has {image.num_tokens} tokens, of the model {num_tokens}"
        if len(image.pixels) != num_bytes:
            return f"image {idx} has {len(image.pixels)} bytes of pixels, the model {num_bytes}"
        end = image.start + image.num_tokens
    return None


def _size(image: RunImage, sight: SightCard) -> PixelSize:
    """An older frontend tells it of no image: then they are all of one size."""
    if not image.height and isinstance(sight.size, FixedSize):
        return PixelSize(sight.size.height, sight.size.width)
    return PixelSize(image.height, image.width)
