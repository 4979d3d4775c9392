"""A step is launched before the tokens of the one before it are known, and nobody can tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import ThinkingBudget
from tests.worker.engine.fake_runner import (
    NAN_TOKEN,
    DelayedRunner,
    Stage,
    expected_output,
    ngram_drafter,
)
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AbortRequest, AddRequest, EngineCommand, SetPaused

PROMPT = [5, 6, 7]


def counting(token_ids: Sequence[int]) -> int:
    return (token_ids[-1] + 1) % 40


class Overlapped:
    """Makes stages, and ends their threads."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def stage(self, **options: Any) -> Stage:
        defaults: dict[str, Any] = {"overlap_depth": 1, "model": counting}
        self.stages.append(Stage(**(defaults | options)))
        return self.stages[-1]


@pytest.fixture
def overlapped() -> Iterator[Overlapped]:
    maker = Overlapped()
    yield maker
    for stage in maker.stages:
        stage.runner.close()


def max_in_flight(stage: Stage) -> int:
    assert isinstance(stage.runner, DelayedRunner)
    return stage.runner.max_in_flight


def assert_all_free(stage: Stage) -> None:
    stage.scheduler.check_integrity()
    load = stage.scheduler.load()
    assert load.num_free_tokens == load.num_kv_tokens
    assert stage.ledger.num_used_rows == 0


def test_tokens_go_into_the_next_step_unseen(overlapped: Overlapped) -> None:
    stage = overlapped.stage()
    stage.add(1, PROMPT)
    stage.run()
    assert stage.tokens[1] == [8, 9, 10, 11]
    assert stage.batches == [[(1, 0, 3)], [(1, 3, 4)], [(1, 4, 5)], [(1, 5, 6)]]
    assert max_in_flight(stage) == 2
    assert stage.runner.num_awaited == 3
    assert_all_free(stage)


def test_a_thought_that_may_end_is_looked_at_first(overlapped: Overlapped) -> None:
    """Nobody chooses ahead of a token behind which the closing mark may be forced."""
    stage = overlapped.stage()
    stage.add(1, PROMPT, thinking=ThinkingBudget(2, (), 10, is_open=True), max_tokens=6)
    stage.run()
    assert stage.tokens[1] == [8, 9, 10, 11, 12, 13]  # the mark is 10
    assert stage.runner.num_awaited == 5
    assert stage.runner.num_late == 2  # behind 9 and 10: the mark is 10, forced if 9 were none
    assert_all_free(stage)


def test_an_end_token_is_seen_one_step_late(overlapped: Overlapped) -> None:
    stage = overlapped.stage(eos_token_ids=[9])
    stage.add(1, PROMPT, max_tokens=10)
    stage.run()
    assert stage.tokens[1] == [8, 9]
    assert stage.finishes[1] == Finish(FinishReason.STOP, matched=9)
    assert stage.batches == [[(1, 0, 3)], [(1, 3, 4)], [(1, 4, 5)]]  # the last one for nothing
    assert_all_free(stage)


def test_what_has_ended_keeps_its_pages_while_a_step_uses_them(overlapped: Overlapped) -> None:
    stage = overlapped.stage(eos_token_ids=[9], num_pages=4, page_size=2, max_running=1)
    stage.add(1, PROMPT, max_tokens=10)
    stage.step()  # prefill
    stage.step()
    stage.step()  # the end token is seen, and one more is on its way
    assert 1 in stage.finishes
    assert stage.ledger.num_used_rows == 1
    assert not stage.ledger.allocator.can_allocate(2)
    stage.add(2, [1] * 7, max_tokens=1)
    stage.run()
    assert stage.tokens[2] == [2]
    assert_all_free(stage)


def test_an_abort_in_flight_is_silent(overlapped: Overlapped) -> None:
    stage = overlapped.stage()
    stage.add(1, PROMPT)
    stage.add(2, [20, 21], max_tokens=8)
    stage.step()
    stage.step()
    stage.scheduler.abort(2)
    stage.scheduler.check_integrity()
    assert stage.ledger.num_used_rows == 2
    stage.run()
    assert stage.tokens == {1: [8, 9, 10, 11], 2: [22]}
    assert 2 not in stage.finishes
    assert_all_free(stage)


def test_all_aborted_in_flight(overlapped: Overlapped) -> None:
    stage = overlapped.stage()
    stage.add(1, PROMPT)
    stage.step()
    stage.scheduler.abort(1)
    assert not stage.scheduler.has_work
    stage.run()
    assert_all_free(stage)


def test_logits_that_are_no_numbers(overlapped: Overlapped) -> None:
    stage = overlapped.stage()
    stage.add(1, [1, NAN_TOKEN])
    stage.add(2, PROMPT)
    stage.run()
    finish = stage.finishes[1]
    assert isinstance(finish, Finish)
    assert finish.reason is FinishReason.ERROR
    assert (stage.tokens[1], stage.tokens[2]) == ([], [8, 9, 10, 11])
    assert_all_free(stage)


def test_retraction_waits_for_the_step_in_flight(overlapped: Overlapped) -> None:
    stage = overlapped.stage(num_pages=6, max_running=3)
    for run_id in (1, 2, 3):
        stage.add(run_id, [run_id] * 4, max_tokens=8)
    stage.scheduler._reserve_ratio.value = 0.0
    stage.run()
    assert stage.scheduler.load().num_preemptions > 0
    assert max_in_flight(stage) == 2
    for run_id in (1, 2, 3):
        assert stage.tokens[run_id] == expected_output([run_id] * 4, 8, counting)
    assert_all_free(stage)


def test_pages_that_another_put_into_the_cache_first_are_freed_later(
    overlapped: Overlapped,
) -> None:
    stage = overlapped.stage(num_pages=32, max_step_tokens=16, max_context_len=128)
    for run_id in (1, 2):
        stage.add(run_id, [*range(12), run_id], max_tokens=9)
    stage.step()
    spares = []
    while stage.scheduler.has_work:
        stage.step()
        spares.append(len([*stage.ledger._spares]))
    stage.run()
    assert max(spares) > 0
    assert_all_free(stage)


def test_penalties_let_steps_go_ahead_and_choose_when_they_know(overlapped: Overlapped) -> None:
    stage = overlapped.stage()
    stage.add(1, PROMPT, frequency_penalty=1.0)
    stage.add(2, [20, 21], max_tokens=8)
    stage.run()
    assert stage.tokens == {1: [8, 9, 10, 11], 2: [*range(22, 30)]}
    assert max_in_flight(stage) == 2
    assert (stage.runner.num_awaited, stage.runner.num_late) == (3 + 7, 3)
    assert_all_free(stage)


def test_who_leaves_before_a_late_choice_is_not_in_its_way(overlapped: Overlapped) -> None:
    stage = overlapped.stage(eos_token_ids=[9])
    stage.add(1, PROMPT, frequency_penalty=1.0)
    stage.add(2, [30, 31], frequency_penalty=1.0, max_tokens=9)
    stage.add(3, [20, 21], max_tokens=9)
    for _ in range(3):
        stage.step()
    stage.scheduler.abort(2)
    stage.run()
    assert stage.tokens[1] == [8, 9]
    assert stage.tokens[3] == [*range(22, 31)]
    assert_all_free(stage)


def test_guesses_need_the_token_first_and_waiting_for_them_does_not(
    overlapped: Overlapped,
) -> None:
    stage = overlapped.stage(
        drafter=ngram_drafter(4, 1, 2),
        num_pages=32,
        max_step_tokens=32,
        model=lambda ids: counting(ids) if len(ids) < 12 else len(ids) * len(ids) % 37,
    )
    stage.add(1, [*range(10), 0], max_tokens=40)
    stage.run()
    assert stage.tokens[1] == expected_output([*range(10), 0], 40, stage.model)
    assert stage.scheduler.load().num_drafted > 0
    assert max_in_flight(stage) == 2


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 3, "min_tokens": 8},
    "penalised": {"frequency_penalty": 0.5},
    "logprobs": {"logprobs": 2, "prompt_logprobs": 1},
}


def requests(**sampling: Any) -> list[AddRequest]:
    return [
        make_add(run_id, random_prompt(length, length), max_tokens=12 + 5 * run_id, **sampling)
        for run_id, length in enumerate((5, 40, 90, 17, 200))
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_engine_says_the_same(tiny_llama: Path, sampling: dict[str, Any]) -> None:
    options = {"num_kv_tokens": 512, "max_step_tokens": 64, "max_running": 4}
    expected = Rig(tiny_llama, **options)
    expected.run(*requests(**sampling))
    rig = Rig(tiny_llama, overlap=True, **options)
    rig.run(*requests(**sampling))
    assert rig.channel.tokens() == expected.channel.tokens()
    assert rig.channel.finishes() == expected.channel.finishes()
    assert _logprobs(rig) == _logprobs(expected)
    last = rig.channel.steps[-1].load
    assert last.num_free_tokens == last.num_kv_tokens


def _logprobs(rig: Rig) -> dict[int, bytes]:
    records: dict[int, bytes] = {}
    for step in rig.channel.steps:
        for output in step.outputs:
            whole = output.prompt_logprobs + output.logprobs
            records[output.run_id] = records.get(output.run_id, b"") + whole
    return records


def test_a_pause_tells_what_was_in_flight(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, overlap=True)
    rig.channel.commands = [make_add(1, [5, 6], max_tokens=5, ignore_eos=True)]
    _handle_and_step(rig, 1)
    assert rig.channel.steps == []
    rig.channel.commands = [SetPaused(True)]
    _handle_and_step(rig, 1)
    assert [len(step.outputs) for step in rig.channel.steps] == [1]
    assert len(rig.run(SetPaused(False))[1]) == 5


def test_an_abort_leaves_the_others(tiny_llama: Path) -> None:
    others: list[EngineCommand] = [
        make_add(run_id, random_prompt(30, run_id), max_tokens=20, ignore_eos=True)
        for run_id in (1, 2)
    ]
    expected = Rig(tiny_llama).run(*others)
    rig = Rig(tiny_llama, overlap=True, max_step_tokens=32)
    rig.channel.commands = [others[0], make_add(9, random_prompt(200, 9)), others[1]]
    _handle_and_step(rig, 4)
    tokens = rig.run(AbortRequest(9))
    assert {run_id: tokens[run_id] for run_id in (1, 2)} == expected


def _handle_and_step(rig: Rig, num_steps: int) -> None:
    for _ in range(num_steps):
        rig.loop.turn()
