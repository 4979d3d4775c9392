"""Products of few rows: right in every shape, and chosen by the clock."""

from __future__ import annotations

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


def test_the_fastest_is_found(interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the fastest of all, whose results are wrong; nor ours where the library's is."""
    from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, SkinnyTiles, skinny_linear
    from worker.engine.cuda.layers import linear_trial

    wrong, right = SkinnyTiles(16, 32, 1), SkinnyTiles(16, 64, 2)
    now, library_s = 0.0, 5.0

    def multiply(
        x: torch.Tensor, weight: torch.Tensor, tiles: SkinnyTiles, scratch: SkinnyScratch
    ) -> torch.Tensor:
        nonlocal now
        now += {wrong: 1.0, right: 3.0}[tiles]
        return skinny_linear(x, weight, None, tiles, scratch) * (2.0 if tiles == wrong else 1.0)

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += library_s
        return torch.matmul(x, weight.T)

    monkeypatch.setattr(linear_trial, "candidates", lambda *_: [wrong, right])
    monkeypatch.setattr(functional, "linear", linear)
    monkeypatch.setattr(linear_trial, "NUM_ROUNDS", 1)
    trial = linear_trial.LinearTrial(LateDevice(), (48, 64), 2, torch.float32, clock=lambda: now)
    assert trial.fastest(2, multiply) == right
    library_s = 2.0
    assert trial.fastest(2, multiply) is None


def test_rows_have_their_tiles(interpreter: None) -> None:
    """By the number of rows, rounded up; a layer that is made later has the library's product."""
    from worker.engine.cuda.layers.skinny_linears import SkinnyLinears

    asked: list[tuple[tuple[int, int], int, int]] = []

    def choose_tiles(
        shape: tuple[int, int], num_layers: int, num_rows: int
    ) -> tuple[int, int, int] | None:
        asked.append((shape, num_layers, num_rows))
        return (16, 64, 2) if num_rows == 2 else None

    linears = SkinnyLinears(choose_tiles, torch.device("cpu"))
    weight, x = random(48, 64, seed=1), random(3, 64)
    first, second = linears.make(weight, None), linears.make(weight + 1, None)
    linears.settle()
    assert asked == [((48, 64), 2, num_rows) for num_rows in (1, 2, 4, 8, 16)]
    assert isinstance(linears.make(weight, None), PlainLinear), "it was made too late"
    for num_rows in (1, 2, 3):
        for made, wanted in ((first, weight), (second, weight + 1)):
            found = made(x[:num_rows])
            is_librarys = torch.equal(found, functional.linear(x[:num_rows], wanted))
            assert is_librarys == (num_rows != 2)
            torch.testing.assert_close(
                found, functional.linear(x[:num_rows], wanted), rtol=1e-4, atol=1e-4
            )


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1024, 1024), (4096, 2048), (1000, 520), (24576, 4096)])
def test_every_candidate_on_a_gpu(shape: tuple[int, int], gpu: CudaDevice) -> None:
    """In bfloat16, captured, and again and again: programs that share a block keep their order."""
    from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, skinny_linear
    from worker.engine.cuda.layers.linear_trial import candidates

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
    from worker.engine.cuda.layers.linear_trial import candidates

    def splits(*shape: int) -> list[int]:
        return [tiles.num_splits for tiles in candidates(torch.Size(shape), 132)]

    assert splits(24576, 4096) == [1, 1, 1, 1]
    assert splits(4096, 4096) == [2, 4, 4, 8]
    assert splits(1024, 1024) == [1, 2, 1, 2]
