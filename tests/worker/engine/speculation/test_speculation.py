"""With and without drafts a request gets the same tokens; with them in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.protocol.finish import Finish, FinishReason
from tests.worker.engine.fake_runner import (
    Stage,
    expected_output,
    looping_token,
    next_token,
    ngram_drafter,
    suffix_drafter,
)
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduledReq
from worker.engine.request.stop_check import StopCheck
from worker.engine.sampling.processors.penalties import Penalised
from worker.engine.sampling.processors.token_rules import Banned
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine.speculation.earlier_outputs import EarlierOutputs
from worker.engine.speculation.repetition_drafter import MAX_STEP_ROWS, RepetitionDrafter
from worker.engine_link.engine_messages import AddRequest

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.2, "seed": 2**63 + 5},
    "penalised": {"frequency_penalty": 0.02, "presence_penalty": 0.02, "min_tokens": 60},
}
# Of samplings and ways to guess; each of both is in another pair.
BY_NIGHT = (("greedy", "suffix"), ("seeded", "ngram"), ("penalised", "suffix"))


def counting(token_ids: Sequence[int]) -> int:
    """0 to 9 again and again."""
    return (token_ids[-1] + 1) % 10


def drafting_stage(**options: Any) -> Stage:
    defaults: dict[str, Any] = {
        "model": counting,
        "drafter": ngram_drafter(4, 1, 2),
        "max_step_tokens": 32,
    }
    return Stage(**(defaults | options))


def drafter_of(stage: Stage) -> RepetitionDrafter:
    drafter = stage.scheduler._drafter
    assert isinstance(drafter, RepetitionDrafter)
    return drafter


def test_a_step_confirms_several_tokens() -> None:
    stage = drafting_stage()
    stage.add(1, [*range(10), 0], max_tokens=12)
    stage.run()
    assert stage.tokens[1] == expected_output([0], 12, counting)
    assert stage.batches == [[(1, 0, 11)], [(1, 11, 16)], [(1, 16, 21)], [(1, 21, 22)]]
    load = stage.scheduler.load()
    assert (load.num_drafted, load.num_accepted) == (8, 8)
    assert load.accepted_by_position == (2, 2, 2, 2, 0, 0, 0, 0)


def test_the_longer_the_repetition_the_more_is_guessed() -> None:
    stage = drafting_stage(drafter=suffix_drafter(8, 1))
    stage.add(1, [*range(10), 0], max_tokens=12)
    stage.run()
    assert stage.tokens[1] == expected_output([0], 12, counting)
    assert stage.batches == [[(1, 0, 11)], [(1, 11, 14)], [(1, 14, 20)], [(1, 20, 22)]]
    load = stage.scheduler.load()
    assert (load.num_drafted, load.num_accepted) == (8, 8)


def test_behind_a_wrong_guess_nothing_counts() -> None:
    stage = drafting_stage(model=lambda ids: 7 if len(ids) == 13 else counting(ids))
    stage.add(1, [*range(10), 0], max_tokens=4)
    stage.run()
    assert stage.tokens[1] == [1, 2, 7, 8]
    assert stage.batches[1:] == [[(1, 11, 14)], [(1, 13, 14)]]  # one guess of two was right


def test_an_end_token_among_the_guesses_ends_it() -> None:
    stage = drafting_stage(eos_token_ids=[3])
    stage.add(1, [*range(10), 0], max_tokens=12)
    stage.run()
    assert stage.tokens[1] == [1, 2, 3]
    assert stage.finishes[1] == Finish(FinishReason.STOP, matched=3)
    load = stage.scheduler.load()
    assert load.num_free_tokens == load.num_kv_tokens


def test_unconfirmed_pages_are_nobodys_prefix() -> None:
    stage = drafting_stage(
        page_size=2, model=lambda ids: 8 if len(ids) == 12 else counting(ids), eos_token_ids=[8]
    )
    stage.add(1, [*range(10), 0], max_tokens=9)
    stage.run()
    assert stage.batches == [[(1, 0, 11)], [(1, 11, 16)]]
    assert stage.tokens[1] == [1, 8]
    assert stage.ledger.cache.num_cached_pages == 6


def test_guesses_keep_within_memory_and_context() -> None:
    stage = drafting_stage(num_pages=4, page_size=4)
    stage.add(1, [*range(10), 0], max_tokens=50)
    stage.run()
    assert len(stage.tokens[1]) == 16 - 11 + 1
    stage = drafting_stage(max_context_len=16)
    stage.add(1, [*range(10), 0], max_tokens=50)
    stage.run()
    assert len(stage.tokens[1]) == 16 - 11
    assert max(end for batch in stage.batches for _, _, end in batch) == 15


def test_prefills_come_before_most_guesses() -> None:
    stage = drafting_stage(max_step_tokens=13, num_pages=64)
    stage.add(1, [*range(10), 0], max_tokens=12)
    stage.step()
    stage.add(2, list(range(10, 40)))
    stage.step()
    assert stage.batches[1] == [(1, 11, 15), (2, 0, 9)]  # 3 of the 12 that the decode left


def test_a_full_step_takes_no_guesses() -> None:
    drafter = ngram_drafter(4, 1, 2)
    assert drafter.step_budget(MAX_STEP_ROWS, 10_000) == 0
    assert drafter.step_budget(MAX_STEP_ROWS - 3, 10_000) == 3


def test_what_others_have_said_is_guessed_in_their_namespace_alone() -> None:
    stage = drafting_stage(model=next_token, drafter=suffix_drafter(4, 2, EarlierOutputs(3)))
    num_steps = []
    for run_id, namespace in enumerate([b"a", b"b", b"a", b"a"], start=1):
        if run_id == 4:  # goes on where one of them was: a resumed run
            stage.add(run_id, [5, 6], stage.tokens[1][:8], max_tokens=20, namespace=namespace)
        else:
            stage.add(run_id, [5, 6], max_tokens=20, namespace=namespace)
        num_before = len(stage.batches)
        stage.run()
        num_steps.append(len(stage.batches) - num_before)
        assert stage.tokens[run_id] == expected_output([5, 6], 20)
    assert num_steps[:2] == [20, 20]
    assert num_steps[2] < 10
    assert num_steps[3] < 6


def test_of_all_that_was_said_only_so_much_is_kept() -> None:
    earlier = EarlierOutputs(3, max_tokens=60)
    stage = drafting_stage(model=next_token, drafter=suffix_drafter(4, 2, earlier))
    for run_id in range(1, 9):
        stage.add(run_id, [run_id], max_tokens=20, namespace=bytes([run_id]))
        stage.run()
    assert earlier.num_tokens == 2 * 21  # the last output is not read yet
    assert [len(earlier.eras(bytes([run_id]))) for run_id in (1, 6, 7, 8)] == [0, 1, 1, 0]


def test_what_has_ended_is_forgotten() -> None:
    stage = drafting_stage(model=looping_token)
    stage.add(1, [1, 2, 1, 2], max_tokens=20)
    stage.add(2, [1, 2, 1, 2], max_tokens=20)
    stage.step()
    stage.step()
    stage.scheduler.abort(2)
    stage.run()
    assert drafter_of(stage)._drafts == {}


def test_guesses_count_as_output() -> None:
    command = make_add(1, [5], [6], max_tokens=9, frequency_penalty=1.0, min_tokens=3)
    req = Req(Arrival(command, 0), StopCheck([0], 99))
    entry = ScheduledReq.drafting(req, [7, 7])
    batch = SamplingBatch.from_points(entry.sample_points, 10)
    assert batch.positions == [2, 3, 4]
    banned, penalised = batch.changes
    assert isinstance(banned, Banned)
    assert isinstance(penalised, Penalised)
    columns = (penalised.rows, penalised.token_ids, penalised.subtracted)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 6, 1.0), (1, 6, 1.0), (1, 7, 1.0), (2, 6, 1.0), (2, 7, 2.0),
    ]  # fmt: skip
    assert banned.rows.tolist() == [0, 1]  # the third has its min_tokens


@pytest.fixture(scope="module")
def loop_prone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("loop_prone"), initializer_range=0.12)


def requests(**sampling: Any) -> list[AddRequest]:
    prompts = [random_prompt(length, length) for length in (5, 40, 90)]
    return [
        make_add(run_id, prompt * 2, max_tokens=90, ignore_eos=True, **sampling)
        for run_id, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("sampling", "speculate"),
    [
        ("greedy", "ngram"),
        ("seeded", "suffix"),
        ("penalised", "ngram"),
        *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in BY_NIGHT),
    ],
)
def test_the_model_says_the_same(loop_prone: Path, sampling: str, speculate: str) -> None:
    plain = Rig(loop_prone)
    rig = Rig(loop_prone, speculate=speculate, min_ngram_len=1)
    expected = plain.run(*requests(**SAMPLINGS[sampling]))
    assert rig.run(*requests(**SAMPLINGS[sampling])) == expected
    load = rig.channel.steps[-1].load
    assert 0 < load.num_accepted < load.num_drafted
    for key, logits in plain.logits.items():
        assert torch.equal(rig.logits[key], logits)


@pytest.mark.parametrize("speculate", [pytest.param("ngram", marks=pytest.mark.nightly), "suffix"])
def test_retractions_change_nothing(loop_prone: Path, speculate: str) -> None:
    expected = Rig(loop_prone).run(*requests())
    rig = Rig(loop_prone, speculate=speculate, num_kv_tokens=352, max_step_tokens=32)
    rig.engine._scheduler._reserve_ratio.value = 0.0
    assert rig.run(*requests()) == expected
    load = rig.channel.steps[-1].load
    assert load.num_preemptions > 0
    assert load.num_accepted > 0
