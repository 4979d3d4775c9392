"""How a model sees videos: what frames are made into, which are chosen, and how it learns when they
were.
"""

from __future__ import annotations

import math

import msgspec

from shared.protocol.image_sizes import (
    AreaSize,
    BadImageSize,
    ImageGrid,
    PixelSize,
    cells_of,
    check_ratio,
)

VIDEO_LEVEL = 4  # the feature level of prompts with videos


class VideoCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model reads a few neighbouring frames at a time: a moment, which is seen on its own, as an
    image is. The last frame fills up the last moment.
    """

    token_id: int  # one stands in the rendered chat, and one for each feature in the prompt
    moment_frames: int
    cell: int  # pixels of a side of a feature
    min_pixels: int  # of a frame, or of all
    max_pixels: int
    resample: int  # Pillow's number of the filter
    rescale_factor: float  # of pixel values, before the mean is taken off
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fps: float  # at which frames are chosen
    min_frames: int
    max_frames: int
    # Before each moment stands its time, and around it are two tokens. Empty: the moments stand one
    # behind the other, and positions tell their times.
    mark: str = ""  # the text of `token_id`, where times are written
    begin: str = ""
    end: str = ""
    positions_per_s: int = 0  # of the first axis; 0: a moment is one position

    @property
    def has_stamps(self) -> bool:
        """Whether times are written as text: then the bounds of pixels are of all frames."""
        return bool(self.mark)

    def fit(self, size: PixelSize, num_frames: int, max_features: int) -> PixelSize:
        """The size of each frame, so that all moments have at most so many features, unless the
        least that the model takes has more. Raises BadImageSize.
        """
        num_moments = self.num_moments(num_frames)
        if self.has_stamps:
            return self._fit_volume(size, num_frames, max_features)
        area = AreaSize(self.cell, self.min_pixels, self.max_pixels)
        return area.fit(size, max_features // num_moments)

    def _fit_volume(self, size: PixelSize, num_frames: int, max_features: int) -> PixelSize:
        if num_frames < self.moment_frames:
            raise BadImageSize(f"has {num_frames} frames, the model reads {self.moment_frames}")
        growth = max(1.0, self.cell / min(size))
        size = PixelSize(int(size.height * growth), int(size.width * growth))
        check_ratio(size)
        most = min(self.max_pixels, max_features * self.cell**2 * self.moment_frames)
        most = max(most, self.min_pixels)
        cells = [round(side / self.cell) for side in size]
        rounded = round(num_frames / self.moment_frames) * self.moment_frames
        volume = rounded * cells[0] * cells[1] * self.cell**2
        scale = math.sqrt(num_frames * size.height * size.width / most)
        if volume > most:
            cells = [max(1, math.floor(side / scale / self.cell)) for side in size]
        elif volume < self.min_pixels:
            growth = math.sqrt(self.min_pixels / (num_frames * size.height * size.width))
            cells = [math.ceil(side * growth / self.cell) for side in size]
        return PixelSize(cells[0] * self.cell, cells[1] * self.cell)

    def num_moments(self, num_frames: int) -> int:
        """That so many frames fill."""
        return -(-num_frames // self.moment_frames)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of a moment whose frames are fitted. None: no fitted ones have this size."""
        return cells_of(size, self.cell)
