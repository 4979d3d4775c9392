"""Products of few rows: right in every shape, and chosen by the clock."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_kernels import random
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.layers.linear import PlainLinear

SHAPES = [  # of the weight, and tiles of outputs, inputs, and programs that share a block
    ((70, 200), (16, 64, 1)),
    ((70, 200), (32, 32, 3)),
    ((33, 300), (16, 64, 8)),  # more than there are blocks of inputs
    ((64, 256), (32, 64, 2)),
]


@pytest.mark.parametrize(("shape", "sizes"), SHAPES)
def test_a_product_of_few_rows(
    shape: tuple[int, int], sizes: tuple[int, int, int], device: torch.device
) -> None:
    from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, SkinnyTiles, skinny_linear

    tiles = SkinnyTiles(*sizes)
    weight, bias = random(*shape, seed=1), random(shape[0], seed=2)
    scratch = SkinnyScratch.of(shape[0], tiles, device)
    for num_rows, has_bias in ((1, True), (3, False), (16, True)):
        x = random(num_rows, shape[1])
        found = skinny_linear(
            x.to(device), weight.to(device), bias.to(device) if has_bias else None, tiles, scratch
        )
        wanted = functional.linear(x, weight, bias if has_bias else None)
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
        assert not scratch.num_done.any(), "the next product finds programs that are not its own"


def test_the_fastest_is_taken_for_each_number_of_rows(
    interpreter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the fastest of all, whose results are wrong."""
    from worker.engine.cuda.kernels.skinny_linear import SkinnyTiles
    from worker.engine.cuda.layers import skinny_linears

    wrong, right = SkinnyTiles(16, 32, 1), SkinnyTiles(16, 64, 2)
    seconds_of = {None: 5.0, wrong: 1.0, right: 3.0}
    ours = skinny_linears.SkinnyLinear.multiply
    taken: list[tuple[int, SkinnyTiles | None]] = []  # and by how many rows

    def multiply(
        linear: skinny_linears.SkinnyLinear, x: torch.Tensor, kernel: skinny_linears.Kernel | None
    ) -> torch.Tensor:
        tiles = None if kernel is None else kernel[0]
        taken.append((len(x), tiles))
        return ours(linear, x, kernel) * (2.0 if tiles == wrong else 1.0)

    clock = itertools.count()
    monkeypatch.setattr(skinny_linears, "candidates", lambda *_: [wrong, right])
    monkeypatch.setattr(skinny_linears.SkinnyLinear, "multiply", multiply)
    monkeypatch.setattr(skinny_linears, "ROW_COUNTS", (2,))
    linears = skinny_linears.SkinnyLinears(
        LateDevice(), lambda: next(clock) * seconds_of[taken[-1][1]]
    )
    weight, x = random(48, 64, seed=1), random(3, 64)
    first = linears.make(weight, None)
    linears.settle()
    assert isinstance(linears.make(weight, None), PlainLinear), "it was made too late"
    taken.clear()
    for num_rows in (1, 2, 3):
        wanted = functional.linear(x[:num_rows], weight)
        torch.testing.assert_close(first(x[:num_rows]), wanted, rtol=1e-4, atol=1e-4)
    assert taken == [(1, None), (2, right), (3, None)]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1024, 1024), (4096, 2048), (1000, 520), (24576, 4096)])
def test_every_candidate_on_a_gpu(shape: tuple[int, int], gpu: CudaDevice) -> None:
    """In bfloat16, captured, and again and again: programs that share a block keep their order."""
    from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, skinny_linear
    from worker.engine.cuda.layers.skinny_linears import candidates

    device = gpu.torch_device
    weight = random(*shape, seed=1).to(device).bfloat16()
    for tiles in candidates(weight.shape, gpu.num_processors):
        scratch = SkinnyScratch.of(len(weight), tiles, device)
        for num_rows in (1, 3, 16):
            x = random(num_rows, shape[1]).to(device).bfloat16()
            wanted = functional.linear(x.float(), weight.float())
            output = torch.zeros_like(wanted)

            def work(x: torch.Tensor = x, output: torch.Tensor = output) -> None:
                output.copy_(skinny_linear(x, weight, None, tiles, scratch))  # noqa: B023

            replay = gpu.capture(work)
            found = []
            for _ in range(20):
                gpu.enqueue(replay)
                gpu.mark().wait()
                found.append(output.clone())
            torch.testing.assert_close(found[0], wanted, rtol=2e-2, atol=0.5)
            assert all(torch.equal(each, found[0]) for each in found)


def test_narrow_weights_are_shared_by_more_programs() -> None:
    pytest.importorskip("triton")
    from worker.engine.cuda.layers.skinny_linears import candidates

    def splits(*shape: int) -> list[int]:
        return [tiles.num_splits for tiles in candidates(torch.Size(shape), 132)]

    assert splits(24576, 4096) == [1, 1, 1, 1]
    assert splits(4096, 4096) == [2, 4, 4, 8]
    assert splits(1024, 1024) == [1, 2, 1, 2]
