"""Images that are cut into tiles, beside transformers' own image processors."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frontend.images.loader import read_image
from shared.protocol.image_sizes import BadImageSize, ImageGrid, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import AnyresSize, TilesSize, Tiling
from tests.frontend.seeing_model import image_bytes, make_image

pytestmark = pytest.mark.torch

TILE = 14
RAW = {"do_rescale": False, "do_normalize": False}
RESOLUTIONS = [(TILE * rows, TILE * cols) for rows in range(1, 4) for cols in range(1, 4)]
NEXT = AnyresSize(TILE, 7, tuple(RESOLUTIONS[1:6]))
ONEVISION = AnyresSize(TILE, 7, tuple(RESOLUTIONS), max_tiles=2)
INTERN = TilesSize(TILE, 5, 1, 6)
ANY = 10_000


def sizes(num: int) -> list[tuple[int, int]]:
    """Width and height: those of tiles, a little beside, and others."""
    draws = random.Random(5)
    near = [TILE * draws.randint(1, 4) + draws.randint(-1, 1) for _ in range(2 * num)]
    far = [draws.randint(1, 90) for _ in range(2 * num)]
    return [*zip(near[::2], near[1::2], strict=True), *zip(far[::2], far[1::2], strict=True)]


def ours(kind: TilesSize | AnyresSize, width: int, height: int) -> tuple[np.ndarray[Any, Any], int]:
    """Pixels of all tiles, [num_tiles, tile, tile, 3], and how many features there are."""
    sight = SightCard(9, kind, 3, 1 / 255, (0.0,) * 3, (1.0,) * 3)
    data = image_bytes(make_image(width=width, height=height))
    loaded = read_image(data, sight, 1_000_000, ANY)
    grid = kind.grid(loaded.size)
    assert grid is not None
    array = np.frombuffer(loaded.pixels, np.uint8)
    assert len(array) == 3 * np.prod(kind.array_size(loaded.size))
    return array.reshape(-1, TILE, TILE, 3), grid.num_features


def theirs(processor: Any, width: int, height: int) -> np.ndarray[Any, Any]:
    pixels = processor([make_image(width=width, height=height)], return_tensors="np")
    tiles = pixels["pixel_values"]
    tiles = tiles[0] if tiles.ndim == 5 else tiles
    return np.asarray(tiles).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("is_next", [True, False], ids=["next", "onevision"])
def test_tiles_amid_black(is_next: bool) -> None:
    from transformers.models.llava_next import image_processing_pil_llava_next as of_next
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision import image_processing_pil_llava_onevision as of_one
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor,
    )

    kind = NEXT if is_next else ONEVISION
    make: Any = (
        of_next.LlavaNextImageProcessorPil if is_next else of_one.LlavaOnevisionImageProcessorPil
    )
    square = {"height": TILE, "width": TILE}
    size = {"size": {"shortest_edge": TILE}, "crop_size": square} if is_next else {"size": square}
    processor = make(image_grid_pinpoints=[[*each] for each in kind.resolutions], **size, **RAW)
    counts: Any = LlavaNextProcessor if is_next else LlavaOnevisionProcessor
    counter = SimpleNamespace(
        image_processor=processor,
        patch_size=2,
        num_additional_image_tokens=0,
        num_image_tokens=49,
        vision_aspect_ratio="anyres_max_2",
    )
    counter._get_unpadded_features = lambda *each: counts._get_unpadded_features(counter, *each)
    for width, height in sizes(12):
        tiles, num_features = ours(kind, width, height)
        assert np.array_equal(tiles, theirs(processor, width, height)), (width, height)
        told = counts._get_number_of_features(counter, height, width, TILE, TILE)
        assert num_features == told, (width, height)


def test_tiles_without_black() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
        GotOcr2ImageProcessorPil,
    )

    size = {"height": TILE, "width": TILE}
    processor: Any = GotOcr2ImageProcessorPil(size=size, max_patches=6, crop_to_patches=True, **RAW)
    for width, height in sizes(15):
        tiles, num_features = ours(INTERN, width, height)
        assert np.array_equal(tiles, theirs(processor, width, height)), (width, height)
        assert num_features == 5 * len(tiles)


def test_no_more_features_than_allowed() -> None:
    for kind in (INTERN, NEXT, ONEVISION):
        for width, height in sizes(15):
            for most in (1, 30, 200, 300):
                fitted = kind.fit(PixelSize(height, width), most)
                grid = kind.grid(fitted)
                assert grid is not None
                small = max(fitted) <= TILE if isinstance(kind, AnyresSize) else grid.rows == 1
                assert grid.num_features <= most or small, (kind, width, height, most)
            assert kind.grid(kind.least) is not None
    assert INTERN.tiling(PixelSize(100, 200), ANY) == Tiling(1, 2)
    assert INTERN.tiling(PixelSize(100, 200), 14) == Tiling(1, 1)
    for size in ((TILE, TILE + 1), (8 * TILE, TILE), (0, TILE), (TILE + 1, TILE)):
        assert INTERN.grid(PixelSize(*size)) is None
    assert INTERN.grid(PixelSize(7 * TILE, TILE)) == ImageGrid(7, 5)
    assert NEXT.grid(PixelSize(0, 5)) is None
    for kind in (INTERN, NEXT):
        with pytest.raises(BadImageSize, match="one side may be 200 times"):
            kind.fit(PixelSize(1, 201), ANY)
