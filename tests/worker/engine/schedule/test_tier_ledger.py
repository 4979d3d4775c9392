"""Pages that leave the pool and come back: outputs stay as they are, and nobody waits for long."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from shared.protocol.finish import Finish
from tests.worker.engine.fake_runner import DelayedRunner, FakeTier, Stage, expected_output

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def make_stage(tier: FakeTier, num_pages: int = 8) -> Stage:
    return Stage(tier=tier, num_pages=num_pages, page_size=2, max_running=2)


def leave(stage: Stage, prompt: Sequence[int] = PROMPT) -> None:
    """Somebody has computed a prompt, whose pages are in the tier alone."""
    stage.add(1000, prompt)
    stage.run()
    stage.step()
    stage.scheduler.empty_pool()


def num_cached_of(stage: Stage, run_id: int) -> int:
    finish = stage.finishes[run_id]
    assert isinstance(finish, Finish)
    return finish.num_cached_tokens


def test_what_left_the_pool_is_read_where_a_prompt_comes_back() -> None:
    tier = FakeTier()
    leave(make_stage(tier))
    stage = make_stage(tier)  # another worker, or the next one
    stage.add(1, PROMPT)
    stage.run()
    assert num_cached_of(stage, 1) == 10
    assert stage.tier is not None
    assert (stage.tier.num_queries, stage.tier.num_hits) == (10, 10)
    assert stage.tokens[1] == expected_output(PROMPT, 4)


def test_who_hands_requests_on_writes_pages_as_they_are_computed() -> None:
    tiers = [FakeTier(), FakeTier()]
    for tier, writes_through in zip(tiers, (False, True), strict=True):
        stage = Stage(
            tier=tier, num_pages=8, page_size=2, max_step_tokens=4, writes_through=writes_through
        )
        stage.add(1, PROMPT, max_tokens=2)
        for _ in range(3):
            stage.step()
        assert 1 not in stage.finishes
        stage.scheduler.serve_tier(None)
    assert [len(tier.pages) for tier in tiers] == [0, 5]


@pytest.mark.parametrize("seeks_pages", [False, True])
def test_what_another_has_just_written_is_looked_for_where_that_was_told(
    *, seeks_pages: bool
) -> None:
    tier = FakeTier()
    leave(make_stage(tier))
    tier.not_seen = set(tier.pages)
    stage = make_stage(tier)
    stage.add(1, PROMPT, seeks_pages=seeks_pages)
    stage.run()
    assert num_cached_of(stage, 1) == (10 if seeks_pages else 0)
    assert stage.tokens[1] == expected_output(PROMPT, 4)


def test_another_namespace_finds_nothing() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    stage.add(1, PROMPT, namespace=b"other")
    stage.run()
    assert num_cached_of(stage, 1) == 0


def test_who_waits_for_pages_is_in_nobodys_way() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    tier.is_hung = True
    stage.add(1, PROMPT)
    stage.step()
    assert stage.scheduler.awaits_pages
    stage.add(2, [8, 8, 8])
    while 2 not in stage.finishes:
        stage.step()
    assert stage.batches[-1] == [(2, 5, 6)]
    assert 1 not in stage.finishes
    tier.is_hung = False
    stage.run()
    assert num_cached_of(stage, 1) == 10


def test_a_tier_that_hangs_is_waited_for_as_long_as_computing_takes() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    tier.is_hung = True
    for run_id in (1, 2):
        stage.add(run_id, PROMPT)
        stage.step()
    assert stage.scheduler.awaits_pages
    stage.time_s += 2
    stage.run()
    assert [num_cached_of(stage, run_id) for run_id in (1, 2)] == [0, 10]
    stage.scheduler.empty_pool()
    stage.add(3, PROMPT)
    assert not stage.scheduler.awaits_pages, "nobody waits for it again"
    stage.run()
    assert stage.tokens[3] == expected_output(PROMPT, 4)


@pytest.mark.parametrize(("read_s", "num_cached"), [(1.9, 10), (2.1, 0)])
def test_what_is_faster_computed_is_not_read(read_s: float, num_cached: int) -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    tier.read_s, stage.token_s = read_s, 1.0  # of a page, and of each of its two tokens
    stage.add(1, PROMPT)
    stage.run()
    assert num_cached_of(stage, 1) == num_cached
    assert stage.tier is not None
    assert stage.tier.num_slow == (5 if num_cached == 0 else 0)


@pytest.mark.parametrize(("write_s", "num_lost"), [(1.9, 0), (2.1, 7)])
def test_what_is_faster_computed_is_not_written(write_s: float, num_lost: int) -> None:
    tier = FakeTier()
    tier.write_s = write_s
    stage = make_stage(tier)
    stage.token_s = 1.0
    leave(stage)
    assert (tier.num_pages, tier.counts.lost["slow"]) == (7 - num_lost, num_lost)


def test_a_tier_without_room_loses_what_must_leave_and_nothing_else() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    tier.has_room = False
    stage.add(1, PROMPT)
    stage.run()
    stage.add(2, [7] * 11)
    stage.run()
    assert tier.counts.lost["busy"] > 0
    assert stage.scheduler.has_tier_work
    tier.has_room = True
    stage.step()
    assert not stage.scheduler.has_tier_work
    assert tier.num_pages == stage.ledger.cache.num_cached_pages


def test_a_page_that_is_gone_ends_the_prefix_there() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    tier.lost.add(list(tier.pages)[2])  # they were written in their order
    stage.add(1, PROMPT)
    stage.run()
    assert num_cached_of(stage, 1) == 4
    assert stage.tokens[1] == expected_output(PROMPT, 4)


def test_a_flush_forgets_what_is_outside_the_pool_and_sleep_does_not() -> None:
    tier = FakeTier()
    stage = make_stage(tier)
    leave(stage)
    assert tier.num_pages == 7, "empty_pool has left them"
    stage.scheduler.flush_cache()
    assert tier.num_pages == 0


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_whatever_leaves_and_comes_back_outputs_are_those_without_a_tier(
    overlap_depth: int,
) -> None:
    """Conversations in a pool that is too small, on a tier that fills, hangs and loses pages."""
    num_hits = 0
    for seed in range(25):
        rng = random.Random(seed)
        tier = FakeTier()
        stage = Stage(
            tier=tier,
            num_pages=rng.randint(8, 16),
            page_size=rng.randint(1, 3),
            max_running=rng.randint(1, 3),
            max_step_tokens=rng.randint(3, 9),
            overlap_depth=overlap_depth,
        )
        prompts: list[list[int]] = []
        texts: list[list[int]] = [[rng.randint(1, 2)] for _ in range(4)]
        for run_id in range(40):
            text = rng.choice(texts)
            if len(text) > 12:
                text[:] = text[: rng.randint(1, 4)]
            text += [rng.randint(1, 2) for _ in range(rng.randint(1, 3))]
            prompts.append(list(text))
            stage.add(run_id, list(text), max_tokens=rng.randint(1, 3))
            if rng.random() < 0.1:
                stage.scheduler.empty_pool()
            if rng.random() < 0.1:
                stage.scheduler.abort(rng.randint(0, run_id))
            for _ in range(rng.randint(0, 6)):
                stage.step()
            tier.has_room, tier.is_hung = rng.random() < 0.8, rng.random() < 0.3
            stage.time_s += rng.choice((0, 0, 2))
            if tier.pages and rng.random() < 0.2:
                tier.lost.add(rng.choice(sorted(tier.pages)))
            text += stage.tokens[run_id]
        tier.is_hung = False
        stage.run()
        if isinstance(stage.runner, DelayedRunner):
            stage.runner.close()
        for run_id, prompt in enumerate(prompts):
            tokens = stage.tokens[run_id]
            assert tokens == expected_output(prompt, len(tokens))
        assert stage.tier is not None
        num_hits += stage.tier.num_hits
    assert num_hits > 500
