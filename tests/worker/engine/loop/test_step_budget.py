from __future__ import annotations

from worker.engine.loop.step_budget import CALM_STEPS, StepBudget


def test_a_step_that_takes_too_long_shrinks_the_next() -> None:
    budget = StepBudget(max_tokens=512, max_running=32, max_step_s=0.5)
    budget.on_step(512, 2.0)
    assert budget.num_tokens == 128
    budget.on_step(128, 0.4)
    assert budget.num_tokens == 128


def test_it_grows_again_when_there_is_time() -> None:
    budget = StepBudget(max_tokens=512, max_running=32, max_step_s=0.5)
    budget.on_step(512, 2.0)
    budget.on_step(40, 0.01)  # says nothing about full steps
    assert budget.num_tokens == 128
    for expected in (256, 512, 512):
        budget.on_step(budget.num_tokens, 0.2)
        assert budget.num_tokens == expected


def test_every_running_request_keeps_its_token() -> None:
    budget = StepBudget(max_tokens=512, max_running=32, max_step_s=0.5)
    budget.on_step(32, 100.0)
    assert budget.num_tokens == 32


def test_what_memory_had_no_room_for_is_tried_again_much_later() -> None:
    budget = StepBudget(max_tokens=512, max_running=32, max_step_s=0.5)
    budget.on_shortage(100)
    for _ in range(CALM_STEPS - 1):
        budget.on_step(budget.num_tokens, 0.01)
        assert budget.num_tokens == 100
    budget.on_step(100, 0.01)
    budget.on_step(100, 0.01)
    assert budget.num_tokens == 200
    budget.on_shortage(8)
    assert budget.num_tokens == 32, "every running request keeps its token"
