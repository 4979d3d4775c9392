"""Images that are cut into tiles, beside transformers' own image processors."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frontend.images.loader import read_image
from shared.protocol.image_sizes import BadImageSize, BudgetSize, ImageGrid, PixelSize
from shared.protocol.sight_card import ImageSize, SightCard
from shared.protocol.tiled_sizes import AnyresSize, CanvasSize, SplitSize, TilesSize, Tiling
from tests.frontend.seeing_model import image_bytes, make_image

pytestmark = pytest.mark.torch

TILE = 14
RAW = {"do_rescale": False, "do_normalize": False}
RESOLUTIONS = [(TILE * rows, TILE * cols) for rows in range(1, 4) for cols in range(1, 4)]
NEXT = AnyresSize(TILE, 7, tuple(RESOLUTIONS[1:6]))
ONEVISION = AnyresSize(TILE, 7, tuple(RESOLUTIONS), max_tiles=2)
INTERN = TilesSize(TILE, 5, 1, 6)
CANVAS = CanvasSize(TILE, 5, 5)
SPLIT = SplitSize(TILE, 5, 3 * TILE - 4)
BUDGET = BudgetSize(4, (70, 140))
ANY = 10_000


def sizes(num: int) -> list[tuple[int, int]]:
    """Width and height: those of tiles, a little beside, and others."""
    draws = random.Random(5)
    near = [TILE * draws.randint(1, 4) + draws.randint(-1, 1) for _ in range(2 * num)]
    far = [draws.randint(1, 90) for _ in range(2 * num)]
    return [*zip(near[::2], near[1::2], strict=True), *zip(far[::2], far[1::2], strict=True)]


def ours(
    kind: ImageSize, width: int, height: int, resample: int = 3
) -> tuple[np.ndarray[Any, Any], int]:
    """Pixels of all tiles, [num_tiles, tile, tile, 3], and how many features there are."""
    sight = SightCard(9, kind, resample, 1 / 255, (0.0,) * 3, (1.0,) * 3)
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
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    size = {"height": TILE, "width": TILE}
    processor: Any = GotOcr2ImageProcessorPil(size=size, max_patches=6, crop_to_patches=True, **RAW)
    for width, height in sizes(15):
        tiles, num_features = ours(INTERN, width, height)
        assert np.array_equal(tiles, theirs(processor, width, height)), (width, height)
        assert num_features == 5 * len(tiles)


def test_tiles_of_a_longest_edge() -> None:
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    edges = {"size": {"longest_edge": 3 * TILE - 4}, "max_image_size": {"longest_edge": TILE}}
    processor: Any = SmolVLMImageProcessorPil(**edges, **RAW)
    for width, height in sizes(15):
        tiles, num_features = ours(SPLIT, width, height, resample=1)
        assert np.array_equal(tiles, theirs(processor, width, height)), (width, height)
        assert num_features == 5 * len(tiles)


@pytest.mark.parametrize(
    ("tile", "max_tiles", "size", "tiling"),
    [
        (14, 5, (31, 127), (5, 1)),
        (14, 5, (57, 69), (2, 2)),
        (14, 5, (70, 27), (1, 3)),
        (14, 5, (37, 140), (4, 1)),
        (14, 5, (14, 29), (3, 1)),
        (14, 5, (6, 8), (1, 1)),
        (28, 16, (83, 141), (5, 3)),
        (28, 16, (85, 69), (3, 4)),
        (28, 16, (28, 141), (6, 1)),
        (28, 16, (55, 56), (2, 2)),
    ],
)
def test_tiles_of_a_canvas(
    tile: int, max_tiles: int, size: tuple[int, int], tiling: tuple[int, int]
) -> None:
    """As transformers 5.24.0 with torchvision 0.28.0 tiles them, whose colours differ by 2 at most:
    an image of the size of its tiles is not scaled.
    """
    width, height = size
    kind = CanvasSize(tile, 4, max_tiles)
    canvas = kind.fit(PixelSize(height, width), ANY)
    assert kind.tiling(canvas) == tiling
    scaled = kind.scaled(PixelSize(height, width), canvas)
    image = make_image(width=width, height=height)
    expected = np.zeros((*canvas, 3), np.uint8)
    expected[: scaled.height, : scaled.width] = np.array(image.resize(scaled[::-1], 2))
    rows, cols = tiling
    cells = expected.reshape(rows, tile, cols, tile, 3).swapaxes(1, 2).reshape(-1, tile, tile, 3)
    sight = SightCard(9, kind, 2, 1 / 255, (0.0,) * 3, (1.0,) * 3)
    loaded = read_image(image_bytes(image), sight, 1_000_000, ANY)
    tiles = np.frombuffer(loaded.pixels, np.uint8).reshape(-1, tile, tile, 3)
    assert np.array_equal(tiles[: rows * cols], cells)
    if rows * cols > 1:
        assert np.array_equal(tiles[-1], np.array(image.resize((tile, tile), 2)))


def test_sizes_of_a_budget() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import (
        get_aspect_ratio_preserving_size,
    )

    for width, height in [*sizes(40), (1, 190), (190, 1), (1, 1)]:
        told = get_aspect_ratio_preserving_size(height, width, 2, 140 * 4, 2)
        assert BUDGET.fit(PixelSize(height, width), ANY) == told, (width, height)
    assert BUDGET.fit(PixelSize(50, 50), 139) == PixelSize(32, 32)


def test_no_more_features_than_allowed() -> None:
    for kind in (INTERN, NEXT, ONEVISION, CANVAS, SPLIT):
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
    assert CANVAS.grid(PixelSize(5 * TILE, TILE)) == ImageGrid(6, 5)
    assert SPLIT.grid(PixelSize(3 * TILE, 3 * TILE)) == ImageGrid(10, 5)
    for kind in (CANVAS, SPLIT):
        for size in ((TILE, TILE + 1), (6 * TILE, TILE), (0, TILE)):
            assert kind.grid(PixelSize(*size)) is None
        assert kind.grid(kind.most) is not None
    assert (BUDGET.grid(BUDGET.most), BUDGET.grid(PixelSize(48, 48))) == (ImageGrid(10, 14), None)
    for each in (INTERN, NEXT, CANVAS, SPLIT, BUDGET):
        with pytest.raises(BadImageSize, match="one side may be 200 times"):
            each.fit(PixelSize(1, 201), ANY)
