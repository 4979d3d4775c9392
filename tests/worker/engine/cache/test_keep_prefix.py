"""Prefixes that requests ask to keep: found again where others are evicted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shared.protocol.request import KeepPrefix
from shared.protocol.sampling import BeamParams
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.kv_ledger import KVLedger

pytestmark = pytest.mark.torch

PROMPT = random_prompt(161, seed=1)


class Crowd:
    """An engine with room for 640 tokens, and a clock that stands still."""

    def __init__(self, path: Path, **config: float) -> None:
        self.now = 100.0
        self._rig = Rig(path, num_kv_tokens=640, **config)
        self._rig.engine._scheduler._ledger._clock = lambda: self.now
        self._run_ids = itertools.count(1)

    def hits(self, prompt: list[int], keep: KeepPrefix | None = None, **sampling: Any) -> int:
        """Tokens of a prompt that are found in the cache."""
        run_id = next(self._run_ids)
        self._rig.run(make_add(run_id, prompt, max_tokens=2, keep=keep, **sampling))
        return self._rig.channel.finishes()[run_id].num_cached_tokens

    def press(self, num_prompts: int = 8) -> None:
        """Others come, twice as many as the cache holds."""
        for _ in range(num_prompts):
            assert self.hits(random_prompt(160, seed=1000 + next(self._run_ids))) == 0

    @property
    def num_pinned_tokens(self) -> int:
        return self._rig.channel.steps[-1].load.num_pinned_tokens


@pytest.fixture
def crowd(tiny_llama: Path) -> Crowd:
    return Crowd(tiny_llama)


def test_a_prefix_is_evicted_unless_somebody_asks_to_keep_it(crowd: Crowd) -> None:
    found = []
    for keep in (None, KeepPrefix(60), KeepPrefix(60, 100), None):
        crowd.now += 100
        crowd.hits(PROMPT, keep)
        crowd.press()
        found.append(crowd.hits(PROMPT))
        crowd.now += 100
        crowd.press()
        assert crowd.hits(PROMPT) == 0, "its time is over"
        crowd.press()
    assert found == [0, 160, 96, 0]


def test_it_is_kept_from_the_last_request_that_asks(crowd: Crowd) -> None:
    crowd.hits(PROMPT, KeepPrefix(60))
    crowd.now += 50
    assert crowd.hits(PROMPT, KeepPrefix(60)) == 160
    crowd.now += 50
    crowd.press()
    assert crowd.hits(PROMPT) == 160


def test_half_of_the_cache_is_for_all(crowd: Crowd) -> None:
    prompts = [random_prompt(161, seed=seed) for seed in range(4)]
    for prompt in prompts:
        crowd.hits(prompt, KeepPrefix(60))
    assert crowd.num_pinned_tokens == 320
    crowd.press()
    assert [crowd.hits(prompt) for prompt in reversed(prompts)] == [160, 160, 0, 0]
    crowd.now += 60
    crowd.press(1)
    assert crowd.num_pinned_tokens == 0


def test_who_runs_comes_before_who_is_kept(tiny_llama: Path) -> None:
    crowd = Crowd(tiny_llama, max_pinned_share=1.0)
    for seed in range(4):
        crowd.hits(random_prompt(161, seed=seed), KeepPrefix(60))
    assert crowd.num_pinned_tokens > 600
    assert crowd.hits(random_prompt(500, seed=9)) == 0
    assert crowd.num_pinned_tokens < 160


def test_a_beam_search_keeps_its_prompt(crowd: Crowd) -> None:
    crowd.hits(PROMPT, KeepPrefix(60), beam=BeamParams(2, 2))
    crowd.press()
    assert crowd.hits(PROMPT) == 160


def test_the_step_that_needs_pages_knows_which_pins_are_over() -> None:
    now = 0.0
    ledger = KVLedger(4, 1, 2, 8, max_pinned_share=1.0, clock=lambda: now)
    stop_check = StopCheck((), 8)

    def run(run_id: int, prompt: list[int], keep: KeepPrefix | None = None) -> int:
        req = Req(Arrival(make_add(run_id, prompt, max_tokens=1, keep=keep), run_id), stop_check)
        ledger.attach(req, ledger.match(req))
        ledger.extend(req, len(prompt))
        req.num_computed = len(prompt)
        ledger.release(req)
        return req.num_cached_tokens or 0

    run(1, [1, 2], KeepPrefix(5))
    run(2, [3, 4])
    now = 5.0
    run(3, [5])
    assert run(4, [3, 4, 6]) == 2
    ledger.check_integrity([])
