"""A GPU whose memory is short: steps are computed in pieces, and no token is another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from shared.errors import ConfigError, GpuMemoryShort
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.short_device import Count, ShortDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig, requests, told, told_of_all
from tests.worker.engine.encoder.test_encoder_scores import save_tiny_encoder
from tests.worker.engine.near_logprobs import assert_near
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.batch.step_plan import NOT_AWAITED, StepPlan
from worker.engine.cuda.sampling.captured_draws import DrawCaptured
from worker.engine.cuda.sampling.gpu_sampler import DeviceSamples, GpuSampler
from worker.engine.cuda.tensor_parallel.rank_orders import RankOrder
from worker.engine.device.gpu_device import Work
from worker.engine.lora.lora_projection import LoraPair, LoraProjections, LoraWeights
from worker.engine.request.token_ranges import Ints
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine_link.engine_messages import AdapterLoaded, LoadAdapter

# Whose steps take no memory.
FEW_GRAPHS: dict[str, Any] = {"cuda_graph_sizes": (1, 2), "cuda_graph_tokens": (0,)}


class Usual(NamedTuple):
    """What the requests give when there is memory enough."""

    path: Path
    tokens: dict[int, list[int]]  # of the CPU
    used_bytes: int  # at most, by a step


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Usual:
    path = save_tiny_llama(tmp_path_factory.mktemp("llama"))
    device = ShortDevice()
    GpuRig(path, device, **FEW_GRAPHS).run(*requests(max_tokens=2))
    return Usual(path, GpuRig(path, None).run(*requests(max_tokens=8)), device.peak_used_bytes)


def short_rig(usual: Usual, share: float, **config: Any) -> tuple[GpuRig, ShortDevice]:
    """Of the memory that it would use it has a share, once it is loaded."""
    device = ShortDevice()
    rig = GpuRig(usual.path, device, **(FEW_GRAPHS | config))
    device.room_bytes = int(share * usual.used_bytes)
    return rig, device


def shortages(rig: GpuRig) -> list[int]:
    """How many tokens had room at once, for each step that had none for all."""
    return [step.num_fitting for step in rig.channel.steps if step.num_fitting is not None]


@pytest.mark.parametrize("overlap", [False, True])
def test_short_memory_changes_no_token(usual: Usual, overlap: bool) -> None:
    """Prefill chunks, steps that decode, their sampling, and prompts that are scored."""
    rig, device = short_rig(usual, 0.15, overlap=overlap)
    assert rig.run(*requests(max_tokens=8)) == usual.tokens
    assert len(shortages(rig)) > 2
    assert min(shortages(rig)) <= 8, "no step was cut thrice"
    assert device.num_given_back == device.num_failures


def test_a_choice_that_comes_late_is_made_in_parts(
    usual: Usual, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed is kept, and nothing is added to it twice."""
    forward, num_rows = GpuSampler.forward, set[int]()

    def of_two(
        self: GpuSampler, logits: torch.Tensor, batch: SamplingBatch, draw: DrawCaptured | None
    ) -> DeviceSamples:
        samples = forward(self, logits, batch, draw)
        if len(logits) > 2:
            raise torch.OutOfMemoryError
        num_rows.add(len(logits))
        return samples

    rig, _ = short_rig(usual, 1.0, overlap=True)
    monkeypatch.setattr(GpuSampler, "forward", of_two)
    assert rig.run(*requests(max_tokens=8)) == usual.tokens
    assert num_rows == {1, 2}


def test_a_step_that_fits_the_second_time_is_not_cut(usual: Usual) -> None:
    rig, device = short_rig(usual, 0.15)
    device.give_back = lambda: setattr(device, "room_bytes", 1 << 40)  # type: ignore[method-assign]
    assert rig.run(*requests(max_tokens=8)) == usual.tokens
    assert (device.num_failures, shortages(rig)) == (1, [64])


def test_the_logprobs_of_a_cut_step_are_those_of_the_whole(usual: Usual) -> None:
    rig, _ = short_rig(usual, 0.2)
    ours = told(rig, num_top=4, num_prompt_top=2)
    assert shortages(rig)
    assert_near(ours, told_of_all(usual.path), tolerance=1e-4)


def test_an_embedding_is_that_of_the_whole(usual: Usual) -> None:
    """Beside requests that decode."""
    pooling = PoolingParams(PoolingKind.MEAN)
    decoding = [make_add(run_id, random_prompt(3, run_id), max_tokens=9) for run_id in range(6)]
    embedded = make_add(9, random_prompt(40, 9), pooling=pooling)
    vectors = []
    rig, _ = short_rig(usual, 0.06, cuda_graph_sizes=(1, 2, 4, 8), max_step_tokens=32)
    for each in (rig, GpuRig(usual.path, None)):
        each.channel.later = [(0.0, embedded)]
        each.run(*decoding)
        vectors.append(np.frombuffer(each.channel.finishes()[9].embedding or b"", "<f4"))
    assert min(shortages(rig)) <= 4
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)


def test_guesses_and_adapters_stay_with_their_rows(usual: Usual, tmp_path: Path) -> None:
    adapter = LoadAdapter("one", str(save_adapter(tmp_path / "one", usual.path)))
    adds = [
        make_add(1, random_prompt(12, 1) * 4, max_tokens=12, ignore_eos=True),
        make_add(2, random_prompt(30, 2), max_tokens=6, adapter="one", namespace=b"one"),
        make_add(3, random_prompt(20, 3), max_tokens=6),
    ]
    config: dict[str, Any] = {"speculate": "ngram", "max_loras": 1}
    rig, _ = short_rig(usual, 0.12, **config)
    assert rig.run(adapter, *adds) == GpuRig(usual.path, None, **config).run(adapter, *adds)
    assert shortages(rig)


def test_an_adapter_without_room_is_refused(usual: Usual, tmp_path: Path) -> None:
    rig, device = short_rig(usual, 0.001)
    make = rig.engine._parts.adapters._make

    def make_with_little_room(weights: LoraWeights) -> LoraProjections:
        with Count(device):
            return make({name: LoraPair(*map(torch.clone, pair)) for name, pair in weights.items()})

    rig.engine._parts.adapters._make = make_with_little_room
    rig.run(LoadAdapter("one", str(save_adapter(tmp_path / "one", usual.path))))
    (answer,) = (each for each in rig.channel.events if isinstance(each, AdapterLoaded))
    assert answer.error == "the GPU has no memory left for a LoRA adapter"


def test_without_room_for_a_token_the_engine_ends(usual: Usual) -> None:
    rig, device = short_rig(usual, 0.001)
    with pytest.raises(GpuMemoryShort, match="no memory for the smallest piece of a step"):
        rig.run(*requests(max_tokens=8))
    assert device.num_given_back == device.num_failures < 10


def token_rows(plan: StepPlan) -> Ints:
    """[num_tokens], of the page table."""
    return plan.rows.repeat(plan.query_lens)


def test_pieces_are_what_the_step_was() -> None:
    """Whatever is cut: each token, and each sample, is in one piece, in order."""
    whole = StepPlan(
        num_decode=2,
        rows=np.array([5, 3, 8, 1]),
        query_lens=np.array([1, 1, 4, 3]),
        seq_lens=np.array([10, 7, 9, 3]),
        input_ids=np.arange(100, 109),
        positions=np.array([9, 6, 5, 6, 7, 8, 0, 1, 2]),
        awaited_rows=np.array([5, *[NOT_AWAITED] * 8]),
        sample_idx=np.array([0, 1, 3, 4, 5, 8]),  # row 8 has guesses
        sample_rows=np.array([5, 3, 8, 8, 8, 1]),
        sample_positions=np.array([10, 7, 7, 8, 9, 3]),
    )
    for cut in range(1, 9):
        first, second = whole.part(0, cut), whole.part(cut, 9)
        assert [*token_rows(first), *token_rows(second)] == [*token_rows(whole)]
        for name in ("input_ids", "positions", "awaited_rows", "sample_rows", "sample_positions"):
            both = [*getattr(first, name), *getattr(second, name)]
            assert both == [*getattr(whole, name)], name
        assert [*first.sample_idx, *(second.sample_idx + cut)] == [*whole.sample_idx]
        for part in (first, second):  # the last position of each row, and how many it has
            ends = part.query_lens.cumsum()
            assert [*(part.positions[ends - 1] + 1)] == [*part.seq_lens]
            assert part.num_decode == sum(row in (5, 3) for row in part.rows)


def test_a_cross_encoder_reads_fewer_texts_at_once(tmp_path: Path) -> None:
    path = save_tiny_encoder(tmp_path, "bert")
    pooling = PoolingParams(PoolingKind.ENCODED, second_start=4)
    adds = [make_add(run_id, random_prompt(12, run_id), pooling=pooling) for run_id in range(8)]
    device, scores = ShortDevice(), []
    for is_short in (False, True):
        rig = GpuRig(path, device, max_step_tokens=96)
        if is_short:
            device.room_bytes = device.peak_used_bytes * 2 // 5
        rig.run(*adds)
        assert bool(shortages(rig)) == is_short
        told = [finish.embedding for _, finish in sorted(rig.channel.finishes().items())]
        scores.append([np.frombuffer(each or b"", "<f4") for each in told])
    assert scores[0] == [pytest.approx(score, abs=1e-6) for score in scores[1]]


def test_an_engine_without_room_for_its_first_steps_does_not_start(usual: Usual) -> None:
    class Crowded(ShortDevice):
        def peak_bytes(self, work: Work) -> int:
            taken = super().peak_bytes(work)
            self.room_bytes = 100  # another program comes while the engine starts
            return taken

    with pytest.raises(ConfigError, match=r"no memory for an engine .* a smaller gpu_memory"):
        GpuRig(usual.path, Crowded(), cuda_graph_sizes=(0,), cuda_graph_tokens=(0,))


def test_beside_other_ranks_nothing_is_tried_again(usual: Usual) -> None:
    """They are in the middle of the step: the engine ends, and the worker starts another."""

    class OtherRanks:
        def send(self, order: RankOrder) -> None:
            pass

    rig, device = short_rig(usual, 0.15)
    rig.engine._steps._runner._followers = OtherRanks()  # type: ignore[attr-defined]
    with pytest.raises(torch.OutOfMemoryError):
        rig.run(*requests(max_tokens=8))
    assert (device.num_failures, device.num_given_back) == (1, 0)
