"""An image in a prompt, a moment of a video, or a window of audio, as the engine holds it, and
whether it is what the model reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.protocol.hearing_card import WINDOW_FRAMES
from shared.protocol.image_sizes import FixedSize, ImageGrid, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.sound_card import SoundCard
from worker.engine_link.engine_messages import AddRequest, RunImage

_START_BYTES = 4


@dataclass(slots=True, weakref_slot=True, eq=False)
class ReqImage:
    """Stands in the place of the prompt's tokens [start, end)."""

    start: int
    end: int
    size: PixelSize  # of each frame of a moment
    array_size: PixelSize  # of its pixels, or frames and energies of a window
    num_frames: int  # 0: it is no moment
    num_sound_frames: int  # 0: it is no window
    position: int  # of its first token on all axes, where the model has three
    time: int  # by which the first axis is later
    grid: ImageGrid  # of what the tower makes of it
    feature_idx: npt.NDArray[np.int64]  # [end - start], of each token; -1: it is not of the tower
    digest: bytes
    pixels: bytes  # [height, width, 3] uint8, or [num_frames, num_mel_bins] float32
    namespace: bytes  # only runs with an equal one share what has been made of it
    is_mutual: bool  # its tokens see each other: no prefill chunk ends within it
    # Between the first and the last prefill chunk that has tokens of it: the encoder keeps what the
    # vision tower made of it.
    is_encoded: bool = field(default=False, init=False)

    @classmethod
    def of(cls, image: RunImage, eyes: Eyes, namespace: bytes, before: ReqImage | None) -> ReqImage:
        """The image of one that `Eyes.error` has found right, behind another one."""
        form = eyes.form(image)
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
            num_sound_frames=image.num_sound_frames,
            position=position,
            time=image.time,
            grid=grid,
            feature_idx=feature_idx,
            digest=image.digest,
            pixels=image.pixels,
            namespace=namespace,
            is_mutual=eyes.sight is not None and eyes.sight.is_mutual,
        )

    @property
    def next_position(self) -> int:
        """The position of what follows it, on all axes."""
        return self.position + max(self.grid)

    @property
    def page_mark(self) -> bytes:
        """What the key of a page with tokens of it ends with: where it begins, and what it is."""
        return self.start.to_bytes(_START_BYTES, "little") + self.digest


@dataclass(frozen=True, slots=True)
class Eyes:
    """How an engine sees, and hears what chats have of audio."""

    sight: SightCard | None = None  # None: it takes no images
    sound: SoundCard | None = None  # None: it takes no audio
    obstacle: str = ""  # why it does not, though the model could

    def images(self, command: AddRequest) -> list[ReqImage]:
        """Those of a run that `error` has found right."""
        found: list[ReqImage] = []
        for image in command.images:
            before = found[-1] if found else None
            found.append(ReqImage.of(image, self, command.options.namespace, before))
        return found

    def error(self, command: AddRequest) -> str | None:
        """What is wrong with the images of a run; None when nothing is."""
        if command.images and self.obstacle:
            return self.obstacle
        end, num_prompt_tokens = 0, len(command.prompt_ids) // 4
        before: RunImage | None = None
        for idx, image in enumerate(command.images):
            kind, card = ("window", self.sound) if image.num_sound_frames else ("image", self.sight)
            if card is None:
                return f"the model takes no {'audio' if image.num_sound_frames else 'images'}"
            if image.start < end or image.start + image.num_tokens > num_prompt_tokens:
                return f"{kind} {idx} stands at token {image.start}, where it cannot"
            if (error := self._error(image, before)) is not None:
                return f"{kind} {idx} {error}"
            end, before = image.start + image.num_tokens, image
        return None

    def _error(self, image: RunImage, before: RunImage | None) -> str | None:
        form = self.form(image)
        if form.grid is None and image.num_sound_frames:
            return f"is of {image.num_sound_frames} frames, and has {len(image.pixels)} bytes"
        if form.grid is None:
            return f"has {form.size.width} x {form.size.height} pixels, as none of the model's"
        num_tokens = len(form.is_feature)
        if image.num_tokens != num_tokens:
            return f"has {image.num_tokens} tokens, of the model {num_tokens}"
        if len(image.pixels) != form.num_bytes:
            return f"has {len(image.pixels)} bytes of pixels, the model {form.num_bytes}"
        return None if self.sight is None else _moment_error(image, before, self.sight)

    def form(self, image: RunImage) -> _Form:
        """What the model makes of it, where it takes such ones."""
        if image.num_sound_frames:
            assert self.sound is not None, "it has been checked"
            return _form_of_window(image, self.sound)
        assert self.sight is not None, "it has been checked"
        return _form(image, self.sight)


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
    pixel_bytes: int = 3

    @property
    def num_bytes(self) -> int:
        return self.pixel_bytes * self.array_size.height * self.array_size.width


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


def _form_of_window(image: RunImage, sound: SoundCard) -> _Form:
    """One of frames of energies, with as many of silence as there are."""
    num_frames = min(len(image.pixels) // (4 * sound.num_mel_bins), WINDOW_FRAMES)
    size = PixelSize(num_frames, sound.num_mel_bins)
    if image.num_sound_frames > num_frames:
        return _Form(size, size, None, np.ones(0, bool), 4)
    num_tokens = sound.num_tokens(image.num_sound_frames)
    return _Form(size, size, ImageGrid(1, num_tokens), np.ones(num_tokens, bool), 4)


def _size(image: RunImage, sight: SightCard) -> PixelSize:
    """An older frontend tells it of no image: then they are all of one size."""
    if not image.height and isinstance(sight.size, FixedSize):
        return PixelSize(sight.size.height, sight.size.width)
    return PixelSize(image.height, image.width)
