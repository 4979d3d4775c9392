"""Which steps run as CUDA graphs, and that padding changes no token of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared.errors import ConfigError
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig, requests, told
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.batch.step_plan import NOT_AWAITED, StepPlan, StepShape
from worker.engine.cuda.steps.step_graphs import StepGraphs
from worker.engine_link.engine_messages import AddRequest, EngineEvent

Lens = list[int]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


class Ran(NamedTuple):
    """A step, and the graph that it took; None: none."""

    step: StepShape
    graph: StepShape | None


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """All steps so far."""
    steps: list[Ran] = []
    choose = StepGraphs.shape_for

    def note(self: StepGraphs, plan: StepPlan, **options: Any) -> StepShape | None:
        shape = choose(self, plan, **options)
        steps.append(Ran(plan.shape, shape))
        return shape

    monkeypatch.setattr(StepGraphs, "shape_for", note)
    return steps


def run_with_arrivals(
    rig: GpuRig, first: list[AddRequest], late: list[AddRequest]
) -> dict[int, list[int]]:
    """One of the late ones after every third step."""
    channel = rig.channel
    send = channel.send

    def send_and_tick(event: EngineEvent) -> None:
        channel.now += 1.0
        send(event)

    channel.send = send_and_tick  # type: ignore[method-assign]
    channel.later = [(channel.now + 3 * idx, add) for idx, add in enumerate(late, 1)]
    return rig.run(*first)


@pytest.mark.parametrize("overlap", [False, True])
def test_each_size_is_used(checkpoint: Path, ran: list[Ran], overlap: bool) -> None:
    """Prompts come while others decode: steps of all sizes, in chunks, with every sampling."""
    late = [
        make_add(100 + idx, random_prompt(length, idx), max_tokens=9, ignore_eos=True)
        for idx, length in enumerate([3, 7, 13, 27, 45, 70, 5, 3])
    ]
    config = {"overlap": overlap, "cuda_graph_sizes": (1, 4, 16)}
    ours, theirs = (
        run_with_arrivals(rig, requests(), late)
        for rig in (GpuRig(checkpoint, LateDevice(), **config), GpuRig(checkpoint, None))
    )
    assert ours == theirs
    tokens = {step.graph.num_tokens for step in ran if step.graph and not step.graph.is_decode}
    rows = {step.graph.num_rows for step in ran if step.graph and step.graph.is_decode}
    assert tokens == {16, 32, 64}
    assert rows == {1, 4, 16}
    assert all(step.graph for step in ran)


def test_larger_steps_run_without_one(checkpoint: Path, ran: list[Ran]) -> None:
    config = {"cuda_graph_sizes": (2,), "cuda_graph_tokens": (8, 24), "overlap": True}
    adds = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=20, ignore_eos=True)
        for run_id, length in enumerate([40, 20, 5, 50])
    ]
    ours, theirs = (
        run_with_arrivals(rig, adds[:1], adds[1:])
        for rig in (GpuRig(checkpoint, LateDevice(), **config), GpuRig(checkpoint, None))
    )
    assert ours == theirs
    for step, graph in ran:
        assert (graph is None) == (step.num_tokens > 24)
    assert {graph and graph.num_tokens for _, graph in ran} == {None, 2, 8, 24}


def test_steps_run_without_graphs(checkpoint: Path, ran: list[Ran]) -> None:
    add = make_add(1, random_prompt(18, 1), max_tokens=5, ignore_eos=True)
    device = LateDevice()
    ours = GpuRig(checkpoint, device, cuda_graph_sizes=(0,), cuda_graph_tokens=(0,)).run(add)
    assert ours == GpuRig(checkpoint, None).run(add)
    assert len(ran) > 5
    assert device.num_replays == 0


def test_guesses_are_confirmed_in_a_graph(checkpoint: Path, ran: list[Ran]) -> None:
    adds = [
        make_add(run_id, random_prompt(12, run_id) * 4, max_tokens=60, ignore_eos=True)
        for run_id in (1, 2, 3)
    ]
    ours = GpuRig(checkpoint, LateDevice(), speculate="ngram").run(*adds)
    assert ours == GpuRig(checkpoint, None).run(*adds)
    chunks = [step for step, _ in ran if step.num_rows > step.num_decode]
    assert len(chunks) > 5
    assert all(graph for _, graph in ran)


def test_a_prompt_of_one_token_is_scored(checkpoint: Path) -> None:
    """Its step looks like one of decoding, whose graph gives no hidden states."""
    ours, theirs = (
        told(GpuRig(checkpoint, gpu), num_top=4, num_prompt_top=2, prompt_ids=[7], max_tokens=3)
        for gpu in (LateDevice(), None)
    )
    assert len(ours) == len(theirs) == 1 + 3
    assert [one.token_id for one in ours] == [one.token_id for one in theirs]


def make_plan(num_decode: int, query_lens: Lens, seq_lens: Lens) -> StepPlan:
    lens, ends = np.array(query_lens), np.array(seq_lens)
    num_tokens = int(lens.sum())
    positions = [np.arange(end - length, end) for length, end in zip(lens, ends, strict=True)]
    return StepPlan(
        num_decode=num_decode,
        rows=np.arange(10, 10 + len(lens)),
        query_lens=lens,
        seq_lens=ends,
        input_ids=np.arange(100, 100 + num_tokens),
        positions=np.concatenate(positions),
        awaited_rows=np.full(num_tokens, 3),
        sample_idx=lens.cumsum() - 1,
        sample_rows=np.arange(10, 10 + len(lens)),
        sample_positions=ends,
    )


def test_a_step_is_filled_up_with_a_chunk_of_padding() -> None:
    plan = make_plan(1, [1, 3, 2], [9, 8, 2])
    padded = plan.padded(StepShape(10, 7, 3), padding_row=77)
    assert padded.shape == StepShape(10, 7, 3)
    assert padded.rows.tolist() == [10, 77, 77, 11, 12, 77, 77]
    assert padded.query_lens.tolist() == [1, 0, 0, 3, 2, 0, 4]
    assert padded.seq_lens.tolist() == [9, 0, 0, 8, 2, 0, 4]
    assert padded.positions.tolist() == [8, 5, 6, 7, 0, 1, 0, 1, 2, 3]
    assert padded.input_ids.tolist() == [100, 101, 102, 103, 104, 105, 0, 0, 0, 0]
    assert padded.awaited_rows.tolist() == [3] * 6 + [NOT_AWAITED] * 4
    assert padded.sample_idx.tolist() == plan.sample_idx.tolist()


def test_a_decode_step_is_filled_up_with_rows_of_padding() -> None:
    padded = make_plan(2, [1, 1], [9, 8]).padded(StepShape.of_decode(4), padding_row=77)
    assert padded.rows.tolist() == [10, 11, 77, 77]
    assert padded.query_lens.tolist() == [1, 1, 1, 1]
    assert padded.seq_lens.tolist() == [9, 8, 1, 1]
    assert padded.positions.tolist() == [8, 7, 0, 0]


def test_a_graph_has_room_for_some_chunks() -> None:
    graph = StepShape.of_tokens(64, max_running=16)
    assert graph == StepShape(64, 16 + 8 + 1, 16)
    assert graph.has_room(StepShape(64, 24, 16))
    assert not graph.has_room(StepShape(65, 1, 0))
    assert not graph.has_room(StepShape(40, 9, 0)), "nine chunks"
    assert not StepShape.of_decode(8).has_room(StepShape(3, 2, 1))
    assert StepShape.of_decode(8).has_room(StepShape(3, 3, 3))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cuda_graph_sizes": (4, 17)}, r"cuda_graph_sizes has 17, must be 1 to 16 \(max_running"),
        ({"cuda_graph_tokens": (65,)}, r"cuda_graph_tokens has 65, must be 1 to 64 \(tokens of a"),
    ],
)
def test_a_size_that_no_step_has_is_refused(
    checkpoint: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GpuRig(checkpoint, LateDevice(), **config)
