"""Steps that are not too long: for whoever decodes, whoever waits, and memory."""

from __future__ import annotations

import pytest

from worker.engine.loop.step_budget import (
    CALM_STEPS,
    ITL_IN_DECODE_STEPS,
    MIN_TOKENS,
    StepBudget,
    StepCosts,
    StepTargets,
)
from worker.engine.request.schedule_batch import StepSize

DECODE_S = 0.02
PREFILL_TOKEN_S = 0.001


def make_budget(
    max_tokens: int = 512,
    max_step_s: float = 0.5,
    target_itl_s: float | None = None,
    target_ttft_s: float = 1.0,
) -> StepBudget:
    return StepBudget(max_tokens, 32, StepTargets(max_step_s, target_itl_s, target_ttft_s))


def make_measured_budget(
    target_itl_s: float | None = None, target_ttft_s: float = 1.0
) -> StepBudget:
    """It has seen steps of a machine whose costs are the two constants."""
    budget = make_budget(target_itl_s=target_itl_s, target_ttft_s=target_ttft_s)
    book(budget, 4, 0, DECODE_S)
    book(budget, 4, 100, DECODE_S + 100 * PREFILL_TOKEN_S)
    return budget


def book(
    budget: StepBudget,
    num_decoding: int,
    num_prefilled: int,
    elapsed_s: float,
    num_guesses: int = 0,
) -> None:
    num_tokens = num_decoding + num_guesses + num_prefilled
    budget.on_step(StepSize(num_decoding, num_prefilled, num_tokens), elapsed_s)


def test_a_step_that_takes_too_long_shrinks_the_next() -> None:
    budget = make_budget()
    book(budget, 0, 512, 2.0)
    assert budget.num_tokens == 128
    book(budget, 0, 128, 0.4)
    assert budget.num_tokens == 128


def test_it_grows_again_when_there_is_time() -> None:
    budget = make_budget()
    book(budget, 0, 512, 2.0)
    book(budget, 0, 40, 0.01)  # says nothing about full steps
    assert budget.num_tokens == 128
    for expected in (256, 512, 512):
        book(budget, 0, budget.num_tokens, 0.2)
        assert budget.num_tokens == expected


def test_every_running_request_keeps_its_token() -> None:
    budget = make_budget()
    book(budget, 32, 0, 100.0)
    assert budget.num_tokens == 32


def test_what_memory_had_no_room_for_is_tried_again_much_later() -> None:
    budget = make_budget()
    budget.on_shortage(100)
    for _ in range(CALM_STEPS - 1):
        book(budget, 0, budget.num_tokens, 0.01)
        assert budget.num_tokens == 100
    book(budget, 0, 100, 0.01)
    book(budget, 0, 100, 0.01)
    assert budget.num_tokens == 200
    budget.on_shortage(8)
    assert budget.num_tokens == 32, "every running request keeps its token"


def test_prompts_have_whole_steps_while_nobody_decodes() -> None:
    assert make_measured_budget().num_prefill_tokens(0, 300) == 512


def test_a_step_beside_decoding_requests_takes_three_of_theirs() -> None:
    num_tokens = make_measured_budget().num_prefill_tokens(4, 300)
    assert num_tokens * PREFILL_TOKEN_S == pytest.approx((ITL_IN_DECODE_STEPS - 1) * DECODE_S)


def test_guesses_cost_those_who_make_them() -> None:
    """What four requests took with 32 guesses is what four requests take."""
    budget = make_budget()
    book(budget, 4, 0, 3 * DECODE_S, num_guesses=32)
    book(budget, 36, 0, 9 * DECODE_S)
    book(budget, 4, 100, 3 * DECODE_S + 100 * PREFILL_TOKEN_S, num_guesses=32)
    num_tokens = budget.num_prefill_tokens(4, 300)
    assert num_tokens * PREFILL_TOKEN_S == pytest.approx((ITL_IN_DECODE_STEPS - 1) * 3 * DECODE_S)


def test_a_target_takes_the_place_of_the_default() -> None:
    num_tokens = make_measured_budget(target_itl_s=0.2).num_prefill_tokens(4, 300)
    assert num_tokens * PREFILL_TOKEN_S == pytest.approx(0.2 - DECODE_S)


def test_a_target_that_decoding_alone_misses_leaves_prompts_some_tokens() -> None:
    assert make_measured_budget(target_itl_s=0.001).num_prefill_tokens(4, 30) == MIN_TOKENS


def test_steps_grow_with_the_time_that_prompts_would_wait() -> None:
    budget = make_measured_budget(target_ttft_s=1.0)
    sizes = [budget.num_prefill_tokens(4, num_waiting) for num_waiting in (600, 1500, 3000, 9000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 40, "600 tokens are done within a second at this pace"
    assert sizes[2] * PREFILL_TOKEN_S + DECODE_S == pytest.approx(3 * 1.5 * 3 * DECODE_S, rel=0.02)
    assert sizes[3] * PREFILL_TOKEN_S + DECODE_S == pytest.approx(0.5), "max_step_s"


@pytest.mark.parametrize("decode_s", [0.002, 0.03, 0.3])
def test_steps_of_any_machine_come_to_the_target_and_stay(decode_s: float) -> None:
    budget = make_budget(max_tokens=8192)
    prefill_token_s = decode_s / 40
    book(budget, 0, 100, 100 * prefill_token_s * 3)  # the first step is slow
    for step in range(30):
        num_prefilled = budget.num_prefill_tokens(8, 100) if step % 4 else 0
        elapsed_s = decode_s + num_prefilled * prefill_token_s
        if step > 20 and num_prefilled:
            assert elapsed_s == pytest.approx(min(3 * decode_s, 0.5), rel=0.1)
        book(budget, 8, num_prefilled, elapsed_s)


def test_one_step_that_was_held_up_is_no_measure() -> None:
    costs = StepCosts()
    costs.on_step(4, 0, DECODE_S)
    costs.on_step(4, 0, 10.0)
    decode_s = costs.decode_s(4)
    assert decode_s is not None
    assert decode_s < 2 * DECODE_S


def test_the_nearest_size_tells_what_an_unknown_one_takes() -> None:
    costs = StepCosts()
    assert costs.decode_s(4) is None
    costs.on_step(1, 0, 0.01)
    costs.on_step(16, 0, 0.03)
    assert [costs.decode_s(num) for num in (1, 2, 3, 20, 256)] == [0.01, 0.01, 0.01, 0.03, 0.03]
