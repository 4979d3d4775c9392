"""How many requests a worker asks for: no more than fit, or than are claimed in a second."""

from __future__ import annotations

import datetime

import pytest

from shared.protocol.sampling import SamplingParams
from shared.subjects import LANES
from tests.worker.io_stage import make_reply, make_request
from worker.capacity.capacity import ClaimPace, CountedCredits, CreditPolicy
from worker.engine_link.engine_messages import EngineLoad, EngineReady
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest, HoldState


def make_ready(max_running: int = 8, num_kv_tokens: int = 10_000) -> EngineReady:
    return EngineReady(4096, 29, max_running, num_kv_tokens, max_step_tokens=512)


def make_load(num_free_slots: int = 8, num_waiting_tokens: int = 0) -> EngineLoad:
    return EngineLoad(0, 0, num_waiting_tokens, num_free_slots, 0, 0, 0, 0, 0)


def make_held(
    num_prompt_tokens: int = 100,
    max_tokens: int = 50,
    state: HoldState = HoldState.RUNNING,
    num_tokens: int = 0,
) -> HeldRequest:
    request = make_request(
        reply=make_reply("0" * 32, num_prompt_tokens),
        sampling=SamplingParams(max_tokens=max_tokens, seed=1),
    )
    delivery = Delivery(b"", "ack", 1, 1, datetime.datetime.now(datetime.UTC), "", LANES[0], 0)
    held = HeldRequest(request, delivery, None, state)
    held.tokens = [0] * num_tokens
    return held


def make_policy(*held: HeldRequest) -> CreditPolicy:
    policy = CreditPolicy()
    for request in held:
        policy.note(request)
    return policy


def test_a_fresh_worker_asks_for_all_its_slots() -> None:
    assert CreditPolicy().num_credits(make_ready(), None, []) == 8


def test_what_is_held_takes_slots() -> None:
    held = [make_held(), make_held(state=HoldState.CLAIMING)]
    assert make_policy(*held).num_credits(make_ready(), make_load(6), held) == 6


@pytest.mark.parametrize("state", [HoldState.FINISHING, HoldState.DROPPED])
def test_what_only_waits_for_the_log_takes_none(state: HoldState) -> None:
    held = [make_held(state=state)]
    assert make_policy(*held).num_credits(make_ready(), make_load(), held) == 8


def test_a_full_worker_asks_for_nothing() -> None:
    held = [make_held() for _ in range(9)]  # one more than there are slots
    policy = make_policy(*held)
    assert policy.num_credits(make_ready(), make_load(0), held) == 0
    assert policy.num_credits(make_ready(), None, held) == 0  # the engine has not told yet


def test_kv_memory_limits_what_is_asked_for() -> None:
    held = [make_held(num_prompt_tokens=900, max_tokens=100)]  # 1000 tokens each
    policy = make_policy(*held)
    assert policy.num_credits(make_ready(num_kv_tokens=3500), make_load(), held) == 2
    assert policy.num_credits(make_ready(num_kv_tokens=1500), make_load(), held) == 0


def test_an_empty_worker_always_asks_for_one() -> None:
    policy = make_policy(make_held(num_prompt_tokens=5000))
    assert policy.num_credits(make_ready(num_kv_tokens=100), make_load(), []) == 1


def test_a_long_prefill_backlog_stops_asking() -> None:
    held = [make_held()]
    policy = make_policy(*held)
    assert policy.num_credits(make_ready(), make_load(7, num_waiting_tokens=1025), held) == 0
    assert policy.num_credits(make_ready(), make_load(7, num_waiting_tokens=1024), held) == 7


def test_long_outputs_are_expected_to_end_early() -> None:
    held = [make_held(num_prompt_tokens=100, max_tokens=100_000)]  # counted as 100 + 256
    policy = make_policy(*held)
    assert policy.num_credits(make_ready(num_kv_tokens=356 * 3), make_load(), held) == 2


def test_the_need_grows_with_the_output() -> None:
    grown = [make_held(num_prompt_tokens=100, max_tokens=2000, num_tokens=1000)]
    policy = make_policy(make_held(num_prompt_tokens=100, max_tokens=100))  # a mean of 200
    ready = make_ready(num_kv_tokens=1800)
    assert policy.num_credits(ready, make_load(), grown) == (1800 - 1356) // 200


def test_the_mean_follows_what_comes() -> None:
    policy = make_policy(make_held(num_prompt_tokens=1000, max_tokens=0))
    for _ in range(50):
        policy.note(make_held(num_prompt_tokens=100, max_tokens=0))
    ready = make_ready(max_running=100, num_kv_tokens=10_000)
    assert policy.num_credits(ready, make_load(), []) > 90


def test_a_slot_is_free_as_long_as_fewer_run() -> None:
    held = [make_held(), make_held(state=HoldState.CLAIMING), make_held(state=HoldState.FINISHING)]
    assert CreditPolicy.has_slot(make_ready(max_running=3), held)
    assert not CreditPolicy.has_slot(make_ready(max_running=2), held)


def test_room_grows_as_fast_as_claims_are_stored_and_falls_with_them() -> None:
    now = [0.0]
    pace = ClaimPace(lambda: now[0])
    assert pace.room == 16
    for _ in range(16):
        pace.begin()
    assert pace.room == 0  # on a starved machine none of them is stored
    for _ in range(16):
        pace.end()
    assert pace.room == 32
    for _ in range(32):
        pace.begin()
    assert pace.room == 0
    for _ in range(32):
        pace.end()
    assert pace.room == 96
    now[0] = 0.9
    assert pace.room == 96
    now[0] = 1.1  # nothing came meanwhile
    assert pace.room == 16


def test_many_requests_are_counted_seldom_and_few_each_time() -> None:
    now, counts = 100.0, iter((50, 1, 30, 7, 6))
    counted = CountedCredits(lambda: now)
    assert counted.num(10_000, lambda: next(counts)) == 50
    counted.note_taken()
    now += 0.19
    assert counted.num(10_000, lambda: next(counts)) == 49
    now += 0.02
    assert counted.num(10_000, lambda: next(counts)) == 1
    counted.note_taken()
    assert counted.num(10_000, lambda: next(counts)) == 30, "none is no reason to wait"
    now += 0.3
    assert [counted.num(32, lambda: next(counts)) for _ in range(2)] == [7, 6]
