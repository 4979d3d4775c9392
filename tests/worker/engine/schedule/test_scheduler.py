from __future__ import annotations

import pytest

from shared.protocol.finish import Finish, FinishReason
from tests.worker.engine.fake_runner import NAN_TOKEN, Stage, expected_output, next_token
from worker.engine.cache.page_allocator import PoolNeeds
from worker.engine.cache.window_pages import num_running_pages
from worker.engine.schedule.waiting_queue import SchedulePolicy

LENGTH = FinishReason.LENGTH


def finish_of(stage: Stage, run_id: int) -> Finish:
    finish = stage.finishes[run_id]
    assert isinstance(finish, Finish)
    return finish


def test_a_request_runs_to_its_end() -> None:
    stage = Stage()
    stage.add(1, [1, 2, 3, 4, 5])
    stage.run()
    assert stage.tokens[1] == expected_output([1, 2, 3, 4, 5], 4)
    assert finish_of(stage, 1) == Finish(LENGTH)
    assert stage.batches == [[(1, 0, 5)], [(1, 5, 6)], [(1, 6, 7)], [(1, 7, 8)]]


def test_chunks_of_prefill_go_along_with_decoding() -> None:
    stage = Stage(max_step_tokens=6)
    stage.add(1, [1, 2])
    stage.add(2, list(range(12)))
    stage.run()
    assert stage.batches[:3] == [
        [(1, 0, 2), (2, 0, 4)],
        [(1, 2, 3), (2, 4, 9)],
        [(1, 3, 4), (2, 9, 12)],
    ]


def test_prompts_have_a_budget_of_their_own_beside_those_who_decode() -> None:
    stage = Stage(max_step_tokens=16)
    stage.add(1, [1, 2])
    stage.step()
    stage.max_prefill_tokens = 3
    stage.add(2, list(range(7)))
    stage.run()
    assert stage.batches[1:4] == [
        [(1, 2, 3), (2, 0, 3)],
        [(1, 3, 4), (2, 3, 6)],
        [(1, 4, 5), (2, 6, 7)],
    ]


def test_priority_comes_before_arrival() -> None:
    stage = Stage(max_running=1)
    for run_id, priority in ((1, 2), (2, 1), (3, 1)):
        stage.add(run_id, [run_id], max_tokens=1, priority=priority)
    stage.run()
    assert list(stage.finishes) == [2, 3, 1]


def test_waiting_counts_like_priority() -> None:
    stage = Stage(max_running=1)
    for run_id, priority, arrived_at_s in ((1, 0, 11.0), (2, 2, 0.0), (3, 2, 2.0), (4, 0, 9.0)):
        stage.add(run_id, [run_id], max_tokens=1, priority=priority, arrived_at_s=arrived_at_s)
    stage.run()
    assert list(stage.finishes) == [4, 2, 1, 3]  # a step of priority is 5 s


def test_a_retracted_request_keeps_its_place() -> None:
    stage = Stage(max_running=1)
    first = stage.add(1, [1, 2, 3])
    stage.add(2, [4])
    stage.step()
    stage.scheduler._retract(first)
    stage.run()
    assert list(stage.finishes) == [1, 2]


def num_computed_tokens(stage: Stage) -> int:
    return sum(end - start for batch in stage.batches for _, start, end in batch)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("max_step_tokens", [64, 512, 4096])
def test_a_shared_prefix_is_computed_once_however_many_ask_at_once(
    policy: SchedulePolicy, max_step_tokens: int
) -> None:
    stage = Stage(
        num_pages=600,
        page_size=4,
        max_running=32,
        max_step_tokens=max_step_tokens,
        max_context_len=400,
        policy=policy,
    )
    shared = [idx % 40 for idx in range(256)]
    for run_id in range(32):
        stage.add(run_id, [*shared, *(run_id for _ in range(8))], max_tokens=1)
    stage.run()
    assert num_computed_tokens(stage) == 256 + 32 * 8


def test_who_shares_little_does_not_wait() -> None:
    stage = Stage(num_pages=64, max_step_tokens=200)
    shared = list(range(28))  # a page less than is worth it
    for run_id in (1, 2):
        stage.add(run_id, [*shared, *(40 + run_id for _ in range(8))], max_tokens=1)
    stage.step()
    assert stage.batches == [[(1, 0, 36), (2, 0, 36)]]


def test_who_waits_for_a_prefix_lets_others_pass_and_outlives_its_filler() -> None:
    stage = Stage(num_pages=64, max_step_tokens=40)
    shared = list(range(40))
    stage.add(1, [*shared, 1], max_tokens=1)
    stage.add(2, [*shared, 2], max_tokens=1)
    stage.add(3, [7, 8, 9], max_tokens=1)
    stage.step()
    stage.step()
    assert stage.batches == [[(1, 0, 40)], [(1, 40, 41), (2, 40, 41), (3, 0, 3)]]
    stage.add(4, [9, *shared], max_tokens=1)
    stage.add(5, [9, *shared], max_tokens=1)
    stage.step()
    stage.scheduler.abort(4)
    stage.run()
    assert stage.tokens[5] == expected_output([9, *shared], 1)


def test_the_longest_cached_prefix_joins_first() -> None:
    stage = Stage(num_pages=64, max_running=1, policy="lpm")
    cached = list(range(16))
    stage.add(0, cached, max_tokens=1)
    stage.run()
    stage.add(1, [20] * 8, max_tokens=1)
    stage.add(2, cached[:8], max_tokens=1)
    stage.add(3, [*cached, 1], max_tokens=1)
    stage.add(4, [21] * 8, max_tokens=1, arrived_at_s=-6.0)  # a step of priority older
    stage.run()
    assert list(stage.finishes)[1:] == [4, 3, 2, 1]


def test_after_a_retraction_the_reserve_is_what_was_really_used() -> None:
    stage = Stage(num_pages=64, max_running=2)
    first = stage.add(1, [1] * 4, max_tokens=40)
    second = stage.add(2, [2] * 4, max_tokens=40)
    for _ in range(5):
        stage.step()
    assert first.num_output_tokens == 5
    stage.scheduler._reserve_ratio.value = 0.1
    stage.scheduler._retract(second)
    assert stage.scheduler._reserve_ratio.value == pytest.approx((5 + 20) / 40)
    stage.run()


def test_a_prefix_is_computed_once() -> None:
    stage = Stage()
    prompt = list(range(10))
    stage.add(1, prompt, max_tokens=1)
    stage.run()
    stage.add(2, [*prompt, 20, 21], max_tokens=1)
    stage.run()
    assert stage.batches[1] == [(2, 8, 12)]
    assert finish_of(stage, 2).num_cached_tokens == 8
    load = stage.scheduler.load()
    assert (load.num_prefix_queries, load.num_prefix_hits) == (22, 8)


def test_a_flush_forgets_all_but_what_is_held() -> None:
    stage = Stage(num_pages=32)
    prompt = list(range(12))
    stage.add(1, prompt, max_tokens=1)
    stage.run()
    stage.add(2, [*prompt[:8], 30, 31], max_tokens=2)
    stage.step()
    stage.scheduler.flush_cache()
    stage.scheduler.check_integrity()
    stage.add(3, prompt, max_tokens=1)
    stage.run()
    stage.scheduler.flush_cache()
    assert stage.ledger.allocator.num_free == 32
    stage.add(4, prompt, max_tokens=1)
    stage.run()
    assert [finish_of(stage, run_id).num_cached_tokens for run_id in (3, 4)] == [8, 0]


def test_prefixes_of_different_namespaces_never_meet() -> None:
    stage = Stage(num_pages=32, max_step_tokens=12)
    prompt = list(range(12))
    for run_id, namespace in enumerate([b"a", b"b", b"a", b"b", b""]):
        stage.add(run_id, prompt, max_tokens=1, namespace=namespace)
        stage.run()
    cached = [finish_of(stage, run_id).num_cached_tokens for run_id in range(5)]
    assert cached == [0, 0, 8, 8, 0]


def test_a_prefix_is_shared_while_it_is_still_being_computed() -> None:
    stage = Stage(max_step_tokens=8, num_pages=32)
    stage.add(1, list(range(12)), max_tokens=1)
    stage.add(2, list(range(12)), max_tokens=1)
    stage.run()
    assert stage.batches == [[(1, 0, 8)], [(1, 8, 12), (2, 8, 12)]]


def test_the_whole_prompt_in_the_cache_leaves_one_token_to_compute() -> None:
    stage = Stage()
    stage.add(1, list(range(8)), max_tokens=5)
    stage.run()
    stage.add(2, list(range(8)), max_tokens=1)
    stage.run()
    assert stage.batches[-1] == [(2, 4, 8)]


def test_the_least_important_request_is_retracted() -> None:
    # 6 pages of 4: each request needs 3 in the end.
    stage = Stage(num_pages=6, max_running=3)
    for run_id, priority in ((1, 0), (2, 1), (3, 0)):
        stage.add(run_id, [run_id] * 4, max_tokens=8, priority=priority)
    stage.scheduler._reserve_ratio.value = 0.0
    stage.run()
    assert stage.scheduler.load().num_preemptions > 0
    assert list(stage.finishes)[-1] == 2
    for run_id in (1, 2, 3):
        assert stage.tokens[run_id] == expected_output([run_id] * 4, 8)


def test_of_equals_the_one_with_fewest_tokens_is_retracted() -> None:
    stage = Stage(num_pages=6, max_running=3)
    stage.add(1, [1] * 4, max_tokens=12)
    stage.step()
    stage.step()
    stage.scheduler._reserve_ratio.value = 0.0
    stage.add(2, [2] * 4, max_tokens=12)
    stage.run()
    assert list(stage.finishes) == [1, 2]
    assert stage.scheduler.load().num_preemptions == 1


def test_a_retracted_request_finds_its_pages_again() -> None:
    stage = Stage(num_pages=8, max_running=2)
    req = stage.add(1, list(range(10)), max_tokens=8)
    stage.step()
    stage.scheduler._retract(req)
    stage.run()
    assert stage.batches[1] == [(1, 8, 11)]
    assert finish_of(stage, 1).num_cached_tokens == 0  # of the first admission


def test_alone_a_request_may_fill_the_memory() -> None:
    stage = Stage(num_pages=3, page_size=4)
    stage.add(1, [1] * 5, max_tokens=50)
    stage.run()
    assert stage.tokens[1] == expected_output([1] * 5, 8)  # 12 slots, and one that needs none
    assert finish_of(stage, 1).reason is LENGTH


def test_two_that_want_all_memory_both_get_it() -> None:
    stage = Stage(num_pages=3, page_size=4)
    stage.add(1, [1] * 5, max_tokens=50)
    stage.add(2, [2] * 5, max_tokens=50)
    stage.run()
    assert [len(stage.tokens[run_id]) for run_id in (1, 2)] == [8, 8]


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "reason"),
    [(0, 0, "error"), (12, 0, "length"), (13, 0, "error"), (5, 8, "length"), (5, 9, "error")],
)
def test_what_does_not_fit_the_memory_is_answered(
    prompt_len: int, output_len: int, reason: str
) -> None:
    stage = Stage(num_pages=3, page_size=4)
    stage.add(1, [1] * prompt_len, [2] * output_len, max_tokens=50)
    stage.run()
    assert finish_of(stage, 1).reason == reason


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "reason"),
    [(19, 0, "length"), (20, 0, "length"), (21, 0, "error"), (10, 10, "length"), (10, 11, "error")],
)
def test_what_does_not_fit_the_context_is_answered(
    prompt_len: int, output_len: int, reason: str
) -> None:
    stage = Stage(max_context_len=20)
    stage.add(1, [1] * prompt_len, [2] * output_len, max_tokens=50)
    stage.run()
    assert finish_of(stage, 1).reason == reason
    assert len(stage.tokens[1]) == max(output_len, 20 - prompt_len, 0)


def test_a_token_id_beyond_the_vocabulary_is_answered() -> None:
    stage = Stage()
    stage.add(1, [1, 50, 2])
    assert finish_of(stage, 1).message == "token id 50 is beyond the model's 50"


def test_logits_that_are_no_numbers_fail_their_request_alone() -> None:
    stage = Stage()
    stage.add(1, [1, 2, 3])
    stage.add(2, [3, NAN_TOKEN])
    stage.run()
    assert finish_of(stage, 1).reason is LENGTH
    assert finish_of(stage, 2).reason is FinishReason.ERROR
    assert stage.tokens[2] == []


def test_an_end_token_ends_it_and_is_put_out() -> None:
    prompt = [1, 2, 3]
    output = expected_output(prompt, 2)
    stage = Stage(eos_token_ids=[output[1]])
    stage.add(1, prompt, max_tokens=10)
    stage.run()
    assert stage.tokens[1] == output
    assert finish_of(stage, 1) == Finish(FinishReason.STOP, matched=output[1])


def test_a_resumed_request_counts_what_it_had() -> None:
    stage = Stage()
    output = expected_output([1, 2], 4)
    stage.add(1, [1, 2], output[:3], max_tokens=4)
    stage.add(2, [1, 2], output, max_tokens=4)
    stage.run()
    assert stage.tokens[1] == stage.tokens[2] == output
    assert stage.tokens[1][-1] == next_token([1, 2, *output[:3]])


def test_an_abort_frees_everything() -> None:
    stage = Stage(max_running=1)
    stage.add(1, list(range(9)))
    stage.add(2, [7])
    stage.step()
    stage.scheduler.abort(1)
    stage.scheduler.abort(2)
    stage.scheduler.abort(3)
    assert not stage.scheduler.has_work
    stage.scheduler.check_integrity()
    load = stage.scheduler.load()
    assert load.num_free_tokens == load.num_kv_tokens
    assert stage.finishes == {}


def test_a_new_request_leaves_room_for_the_running_ones() -> None:
    stage = Stage(num_pages=8, max_running=2)
    stage.add(1, [1] * 8, max_tokens=20)  # 2 pages now, 5 more later
    stage.step()
    stage.add(2, [2] * 16, max_tokens=1)
    stage.step()
    assert stage.scheduler.load().num_waiting == 1
    stage.run()
    assert stage.scheduler.load().num_preemptions == 0


def test_more_requests_run_at_once_in_the_same_memory_where_half_of_the_layers_have_a_window() -> (
    None
):
    num_running = num_running_pages(window=8, page_size=4, max_running=32, max_step_tokens=64)
    most = []
    for needs, window in ((PoolNeeds(4, 2), None), (PoolNeeds(4, 2, 1, num_running), 8)):
        num_pages = needs.of_bytes(4096).num_pages
        stage = Stage(
            num_pages=num_pages,
            page_size=4,
            max_running=32,
            max_step_tokens=64,
            max_context_len=200,
            window=window,
        )
        for run_id in range(32):
            stage.add(run_id, [run_id, *[1] * 90], max_tokens=40)
        num_running_at_once = 0
        while stage.step():
            num_running_at_once = max(num_running_at_once, stage.scheduler.load().num_running)
        most.append((num_pages, num_running_at_once))
    assert most == [(512, 16), (710, 23)]
