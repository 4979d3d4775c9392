"""An image in a prompt, or a moment of a video, as the engine holds it, and whether it is what the
model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    size: PixelSize  # of each frame of a moment
    array_size: PixelSize  # of its pixels
    num_frames: int  # 0: it is no moment
    position: int  # of its first token on all axes, where the model has three
    time: int  # by which the first axis is later
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
    def of(
        cls, image: RunImage, sight: SightCard, namespace: bytes, before: ReqImage | None
    ) -> ReqImage:
        """Of one that `Eyes.error` has found right, behind another one."""
        form = _form(image, sight)
        grid = form.grid
        assert grid is not None, "its size has been checked"
        feature_idx = np.where(form.is_feature, form.is_feature.cumsum() - 1, -1)
        position = image.start
        if before is not None:
            position += before.next_position - before.end
            position = before.position if image.goes_on else position
        return cls(
            start=image.start,
            end=image.start + image.num_tokens,
            size=form.size,
            array_size=form.array_size,
            num_frames=image.num_frames,
            position=position,
            time=image.time,
            grid=grid,
            feature_idx=feature_idx,
            digest=image.digest,
            pixels=image.pixels,
            namespace=namespace,
            is_mutual=sight.is_mutual,
        )

    @property
    def next_position(self) -> int:
        """Of what follows it, on all axes."""
        return self.position + max(self.grid)

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
        found: list[ReqImage] = []
        for image in command.images:
            before = found[-1] if found else None
            found.append(ReqImage.of(image, self.sight, command.options.namespace, before))
        return found

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
        form = _form(image, sight)
        if form.grid is None:
            size = form.size
            return f"image {idx} has {size.width} x {size.height} pixels, as none of the model's"
        array = form.array_size
        num_tokens, num_bytes = len(form.is_feature), 3 * array.height * array.width
        if image.num_tokens != num_tokens:
            return f"image {idx} has {image.num_tokens} tokens, of the model {num_tokens}"
        if len(image.pixels) != num_bytes:
            return f"image {idx} has {len(image.pixels)} bytes of pixels, the model {num_bytes}"
        if (error := _moment_error(image, images[idx - 1] if idx else None, sight)) is not None:
            return f"image {idx} {error}"
        end = image.start + image.num_tokens
    return None


def _moment_error(image: RunImage, before: RunImage | None, sight: SightCard) -> str | None:
    """What is wrong with a moment besides its size."""
    most = 0 if sight.video is None else sight.video.moment_frames
    if image.num_frames not in (0, most):
        return f"is of {image.num_frames} frames of a video, of which the model reads {most}"
    begins = image.start, image.num_frames, image.height, image.width
    if image.goes_on and (
        before is None
        or not image.num_frames
        or begins
        != (before.start + before.num_tokens, before.num_frames, before.height, before.width)
    ):
        return "goes on with a video that is not before it"
    if image.time and not image.goes_on:
        return f"is {image.time} positions later than itself"
    return None


class _Form(NamedTuple):
    """What the model makes of an image of some size."""

    size: PixelSize
    array_size: PixelSize
    grid: ImageGrid | None  # None: no fitted one has this size
    is_feature: npt.NDArray[np.bool_]  # [num_tokens], whether each is of the tower


def _form(image: RunImage, sight: SightCard) -> _Form:
    size = _size(image, sight)
    if image.num_frames and sight.video is not None:
        grid = sight.video.grid(size)
        array_size = PixelSize(image.num_frames * size.height, size.width)
        return _Form(size, array_size, grid, np.ones(grid.num_features if grid else 0, bool))
    if (grid := sight.size.grid(size)) is None:
        return _Form(size, size, None, np.ones(0, bool))
    is_feature = np.array(sight.image_ids(size)) == sight.image_token_id
    return _Form(size, sight.size.array_size(size), grid, is_feature)


def _size(image: RunImage, sight: SightCard) -> PixelSize:
    """An older frontend tells it of no image: then they are all of one size."""
    if not image.height and isinstance(sight.size, FixedSize):
        return PixelSize(sight.size.height, sight.size.width)
    return PixelSize(image.height, image.width)
