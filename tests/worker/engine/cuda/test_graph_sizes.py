"""Which sizes are captured, and which graph a step takes."""

from __future__ import annotations

import pytest

from shared.errors import ConfigError
from worker.engine.cuda.graph_sizes import check_sizes, default_sizes, padded_size


def test_small_sizes_lie_close() -> None:
    assert default_sizes(32) == (1, 2, 4, 8, 16, 24, 32)
    assert default_sizes(3) == (1, 2, 3)
    assert default_sizes(1) == (1,)
    assert default_sizes(300)[-4:] == (256, 272, 288, 300)


def test_a_step_takes_the_least_that_has_room() -> None:
    assert [padded_size((1, 2, 8), rows) for rows in (1, 2, 3, 8, 9)] == [1, 2, 8, 8, None]


def test_sizes_are_sorted_and_checked() -> None:
    assert check_sizes([8, 1, 8], 8) == (1, 8)
    with pytest.raises(ConfigError, match="cuda_graph_sizes has 0"):
        check_sizes([0], 8)
