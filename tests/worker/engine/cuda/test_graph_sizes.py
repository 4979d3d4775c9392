"""Which sizes are captured when nobody says."""

from __future__ import annotations

import itertools

from worker.engine.cuda.steps.step_graphs import default_rows, default_tokens

MILLION = 1e6


def test_small_sizes_lie_close() -> None:
    assert default_rows(32) == (1, 2, 4, 8, 16, 24, 32)
    assert default_rows(3) == (1, 2, 3)
    assert default_rows(1) == (1,)
    assert default_rows(300)[-4:] == (256, 272, 288, 300)


def test_large_models_have_fewer_sizes() -> None:
    """Of Qwen 3: of what size are those whose steps are over before the next one is launched."""
    assert default_tokens(8192, 21 * MILLION)[-1] == 1024  # 0.6B
    assert default_tokens(8192, 61 * MILLION)[-1] == 512  # 1.7B
    assert default_tokens(8192, 227 * MILLION) == (16, 32, 64, 128)  # 8B
    assert default_tokens(100, MILLION) == (16, 32, 64)
    assert default_tokens(8, MILLION) == ()


def test_a_step_is_not_filled_up_by_more_than_a_quarter() -> None:
    sizes = default_tokens(8192, MILLION)
    wide = [(one, other) for one, other in itertools.pairwise(sizes) if one >= 128]
    assert all(other <= 1.25 * one for one, other in wide)
