"""Which steps are captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import ConfigError
from worker.engine.cuda.batch.step_plan import StepShape
from worker.engine_link.engine_config import EngineConfig

_FIRST_ROWS = (1, 2, 4)
_STEP, _WIDE_STEP, _WIDE_FROM = 8, 16, 256
# Up to 128 a step takes as long as the weights need to be read; from there on a quarter more of an
# octave at a time, so that not too much is computed for nothing.
_TOKENS = (16, 32, 64, 128, *range(160, 257, 32), *range(320, 513, 64), *range(640, 1025, 128))
# Of a layer's weights and tokens: a GPU multiplies so many in about the time that the host takes to
# launch the layer's kernels. From there on a graph has no time to save, and padding to lose.
_LAUNCH_BOUND_PRODUCTS = 1 << 35


def graph_shapes(
    config: EngineConfig, max_running: int, max_tokens: int, layer_size: float
) -> list[StepShape]:
    """As configured, or what suits a model with `layer_size` weights a layer.

    `max_tokens`: of a step, and of a request. Raises ConfigError.
    """
    rows, tokens = config.cuda_graph_sizes, config.cuda_graph_tokens
    _check("cuda_graph_sizes", rows, max_running, "max_running")
    _check("cuda_graph_tokens", tokens, max_tokens, "tokens of a step or a request")
    return [
        *map(StepShape.of_decode, set(rows or default_rows(max_running)) - {0}),
        *(
            StepShape.of_tokens(num_tokens, max_running)
            for num_tokens in set(tokens or default_tokens(max_tokens, layer_size)) - {0}
        ),
    ]


def default_rows(max_running: int) -> tuple[int, ...]:
    """1, 2, 4, then each eighth up to 256, then each sixteenth; the most that may run is one."""
    narrow = range(_STEP, min(max_running, _WIDE_FROM) + 1, _STEP)
    wide = range(_WIDE_FROM + _WIDE_STEP, max_running + 1, _WIDE_STEP)
    sizes = {size for size in (*_FIRST_ROWS, *narrow, *wide) if size <= max_running}
    return tuple(sorted(sizes | {max_running}))


def default_tokens(max_tokens: int, layer_size: float) -> tuple[int, ...]:
    """Rising; none where even small steps are no matter of launching."""
    most = min(max_tokens, _LAUNCH_BOUND_PRODUCTS / layer_size)
    return tuple(size for size in _TOKENS if size <= most)


def _check(name: str, sizes: Sequence[int], limit: int, of_what: str) -> None:
    """Raises ConfigError."""
    for size in sizes:
        if not 0 <= size <= limit:
            raise ConfigError(f"{name} has {size}, must be 1 to {limit} ({of_what}), or 0 for none")
