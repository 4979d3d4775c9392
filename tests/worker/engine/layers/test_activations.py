"""Activations give a value the same bits wherever in a step it is, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from worker.engine.models.layer_config import ACTIVATION_OF_NAME, Activation
from worker.engine.models.layer_ops import Xielu, activate, sigmoid, silu_mul, softplus

# With three threads torch divides a step of these sizes in the middle of a row.
SIZES = (500, 8960)
NUMS_TOKENS = (2, 5, 9, 13)


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    usual = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(usual)


def assert_same_alone(compute: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_tokens in NUMS_TOKENS:
        rows = torch.randn(num_tokens, size, generator=generator) * 3
        together = compute(rows)
        alone = torch.cat([compute(rows[idx : idx + 1]) for idx in range(num_tokens)])
        assert torch.equal(together, alone)


@pytest.mark.parametrize("size", SIZES)
def test_llamas_gates(num_threads: int, size: int) -> None:
    assert_same_alone(silu_mul, 2 * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ACTIVATION_OF_NAME.values())
def test_every_kind(num_threads: int, size: int, kind: Activation) -> None:
    assert_same_alone(lambda rows: activate(rows, kind), size + 3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("compute", [sigmoid, softplus, Xielu(0.8, 0.7, 0.5, -1e-6).of])
def test_gates_and_times(
    num_threads: int, size: int, compute: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert_same_alone(compute, size + 3)


def test_they_are_those_of_torch() -> None:
    x = torch.linspace(-120, 120, 4001)
    functional = torch.nn.functional
    torch.testing.assert_close(sigmoid(x), x.sigmoid())
    torch.testing.assert_close(softplus(x), functional.softplus(x))
    expected: dict[Activation, torch.Tensor] = {
        "silu": functional.silu(x),
        "gelu": functional.gelu(x),
        "gelu_tanh": functional.gelu(x, approximate="tanh"),
        "relu": functional.relu(x),
        "relu2": functional.relu(x).square(),
    }
    for kind, values in expected.items():
        torch.testing.assert_close(activate(x, kind), values)
