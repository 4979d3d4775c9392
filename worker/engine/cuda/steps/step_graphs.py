"""Steps whose kernels are launched by one call: a CUDA graph for each of some sizes, and which."""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from shared.errors import ConfigError
from worker.engine.cuda.batch.step_inputs import pack, packed_size
from worker.engine.cuda.batch.step_plan import StepPlan, StepShape
from worker.engine.cuda.sampling.captured_draws import CapturedDraws, DrawCaptured
from worker.engine.cuda.sampling.draws import Draws
from worker.engine.cuda.steps.gpu_state import GpuForward, GpuState
from worker.engine.device.gpu_device import GpuDevice, Work, upload_to
from worker.engine.layers.state_layer import StepStates
from worker.engine.models.model_config import ModelConfig
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


class Computed(NamedTuple):
    """What the model gave, on the device; of a graph, valid until the next step."""

    hidden: torch.Tensor | None  # [num_tokens, hidden_size]; None: nobody reads it
    logits: torch.Tensor | None  # [num_samples, num_outputs] float32; None: not computed
    draw: DrawCaptured | None = None  # from these logits, however they are changed before


class StepGraphs:
    """Graphs of steps: of those that decode up to their logits, of others up to all hidden states.

    Everything is in tensors that stay where they are. A step with fewer rows or tokens than its
    graph is filled up with some of padding, whose keys and values go to the padding page.
    """

    def __init__(
        self,
        device: GpuDevice,
        state: GpuState,
        model_config: ModelConfig,
        dtype: torch.dtype,
        shapes: Sequence[StepShape],
        draws: Draws | None = None,  # None: what is chosen is in no graph
    ) -> None:
        """Raises NotCapturable."""
        self._device = device
        self._state = state
        self._inputs = state.inputs
        most_rows = max((shape.num_rows for shape in shapes if shape.is_decode), default=0)
        most_tokens = max((shape.num_tokens for shape in shapes), default=0)
        most_values = max((packed_size(shape) for shape in shapes), default=0)
        make = functools.partial(torch.empty, device=device.torch_device)
        self._packed = make(most_values, dtype=torch.int64)
        self._logits = make(most_rows, model_config.num_outputs)  # of steps that decode
        size = model_config.hidden_size
        self._stage_rows: torch.Tensor | None = None  # [most_tokens, 2, hidden_size]
        if not model_config.begins_text:
            self._stage_rows = make(most_tokens, 2, size, dtype=dtype)
        self._gives_logits = model_config.ends_text
        hidden_shape = (most_tokens, size) if self._gives_logits else (most_tokens, 2, size)
        self._hidden = make(*hidden_shape, dtype=dtype)  # of others
        self._draws: CapturedDraws | None = None
        if draws is not None:
            self._draws = CapturedDraws(device, draws, state.inputs, self._logits, self._packed)
        self._states: dict[StepShape, StepStates] = {}
        self._shapes = sorted(shapes)
        self._graphs: dict[StepShape, Work] = {}
        self.taken_bytes: dict[StepShape, int] = {}  # by each beyond what it found
        device.begin_graphs()
        free_bytes = device.free_bytes()
        for shape in reversed(self._shapes):  # a small one finds what a large one needed
            self._graphs[shape] = self._capture(shape)
            before, free_bytes = free_bytes, device.free_bytes()
            self.taken_bytes[shape] = before - free_bytes

    def shape_for(self, plan: StepPlan, *, reads_hidden: bool) -> StepShape | None:
        """The shape of the smallest graph that has room; None: the step runs without one."""
        wants_logits = plan.is_decode and not reads_hidden
        first = bisect_left(self._shapes, (plan.num_tokens,))
        for shape in self._shapes[first:]:
            if shape.has_room(plan.shape) and (wants_logits or not shape.is_decode):
                return shape
        return None

    def run(self, plan: StepPlan, shape: StepShape, stage_rows: torch.Tensor | None) -> Computed:
        """Part of enqueued work."""
        self._send(plan, shape)
        if stage_rows is not None and self._stage_rows is not None:
            self._stage_rows[: plan.num_tokens].copy_(stage_rows)
        self._graphs[shape]()
        if shape.is_decode and self._gives_logits:
            draw = None if self._draws is None else functools.partial(self._draws.draw, shape)
            return Computed(None, self._logits[: len(plan.rows)], draw)
        return Computed(self._hidden[: plan.num_tokens], None)

    def close(self) -> None:
        """Gives the graphs up, and their memory."""
        self._shapes.clear()
        self._graphs.clear()
        self._states.clear()
        self._draws = None

    def _send(self, plan: StepPlan, shape: StepShape) -> None:
        padded = plan.padded(shape, self._inputs.page_table.padding_row)
        packed = self._packed[: packed_size(shape)]
        upload_to(self._device, packed, pack(padded))
        self._forward(shape).plan(self._inputs.rows(padded, packed, in_graph=True))

    def _capture(self, shape: StepShape) -> Work:
        """Captures a step of nothing but padding."""
        self._device.enqueue(lambda: self._send(StepPlan.empty(), shape))
        graph = self._device.capture(lambda: self._compute(shape))
        if shape.is_decode and self._draws is not None:
            self._draws.capture(shape)
        return graph

    def _compute(self, shape: StepShape) -> None:
        forward = self._forward(shape)
        batch = self._inputs.batch(self._packed[: packed_size(shape)], shape)
        rows = None if self._stage_rows is None else self._stage_rows[: shape.num_tokens]
        batch = dataclasses.replace(batch, states=self._states_of(shape), stage_rows=rows)
        hidden = forward.hidden(batch)
        if shape.is_decode and self._gives_logits:
            forward.write_logits(hidden, self._logits[: shape.num_rows])
        else:
            self._hidden[: shape.num_tokens].copy_(hidden)

    def _states_of(self, shape: StepShape) -> StepStates | None:
        """Made before the capture, and what it looks up with it: they are sent to the GPU then."""
        cache = self._state.states
        if cache is None:
            return None
        if shape not in self._states:
            assert shape.is_decode, "steps with prefill run without graphs"
            slots, _ = self._inputs.rows_and_lens(self._packed, shape)
            self._states[shape] = cache.decoding(slots)
        return self._states[shape]

    def _forward(self, shape: StepShape) -> GpuForward:
        return self._state.forward if shape.is_decode else self._state.mixed


def rehearse(
    device: GpuDevice,
    capture: Callable[[Sequence[StepShape]], StepGraphs],
    shapes: Sequence[StepShape],
) -> int:
    """How many bytes graphs will take, before what is left is divided. Raises NotCapturable.

    The two largest graphs of each kind are captured and given up. The first takes what smaller ones
    use after it, and the second what each of them takes for itself.
    """
    kinds = [
        sorted((shape for shape in shapes if shape.is_decode == is_decode), reverse=True)
        for is_decode in (True, False)
    ]
    before = device.free_bytes()
    graphs = capture([shape for kind in kinds for shape in kind[:2]])
    num_bytes = before - device.free_bytes()
    for kind in kinds:
        if len(kind) > 2:
            num_bytes += (len(kind) - 2) * graphs.taken_bytes[kind[1]]
    graphs.close()
    device.begin_graphs()  # what they shared is free, and is not counted again
    return max(0, num_bytes)
