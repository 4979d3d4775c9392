"""Prompts go on behind states that others left at page borders: bit for bit as without these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.request import KeepPrefix
from tests.worker.engine.families import RECURRENT
from tests.worker.engine.loop.test_invariance import APART
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AbortRequest, AddRequest

PROMPT = random_prompt(100, seed=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_recurrent(tmp_path_factory.mktemp("lfm2"), "lfm2")


def add(run_id: int, prompt: list[int], max_tokens: int = 4, **options: Any) -> AddRequest:
    return make_add(run_id, prompt, max_tokens=max_tokens, ignore_eos=True, **options)


def cached(rig: Rig) -> dict[int, int]:
    """Tokens of each prompt that came from the cache."""
    return {run_id: each.num_cached_tokens for run_id, each in rig.channel.finishes().items()}


def assert_as_alone(path: Path, rig: Rig, *adds: AddRequest) -> None:
    """Their logits are those of an engine that keeps no prefix."""
    alone = Rig(path, state_snapshots=0)
    alone.run(*adds)
    run_ids = {each.run_id for each in adds}
    keys = [key for key in rig.logits if key[0] in run_ids]
    assert len(keys) == sum(
        each.options.sampling.max_tokens - len(each.output_ids) // 4 for each in adds
    )
    assert all(torch.equal(rig.logits[key], alone.logits[key]) for key in keys)


@pytest.mark.parametrize(
    "family",
    [
        family if family in APART else pytest.param(family, marks=pytest.mark.nightly)
        for family in RECURRENT
    ],
)
def test_turns_branches_and_resumed_requests(tmp_path: Path, family: str) -> None:
    path = save_recurrent(tmp_path, family)
    rig = Rig(path, max_step_tokens=37, num_kv_tokens=512)
    first = add(1, PROMPT, 41)
    answer = rig.run(first)[1]
    turn = add(2, PROMPT + answer + random_prompt(30, seed=2), 20)
    rig.run(turn)
    resumed = add(3, PROMPT + answer, 60, output_ids=[5] * 40)
    again, other = add(4, PROMPT), add(5, PROMPT[:70] + random_prompt(60, seed=3))
    branch = add(6, PROMPT[:70] + random_prompt(60, seed=4))
    for each in (resumed, again, other, branch):
        rig.run(each)
    assert cached(rig) == {1: 0, 2: 128, 3: 128, 4: 96, 5: 0, 6: 64}
    assert_as_alone(path, rig, first, turn, resumed, again, other, branch)


def test_choices_wait_for_the_first_and_prompts_for_what_two_have_in_common(path: Path) -> None:
    rig = Rig(path, max_step_tokens=32)
    choices = [add(run_id, PROMPT, 6) for run_id in (1, 2, 3)]
    rig.run(*choices)
    assert cached(rig) == {1: 0, 2: 96, 3: 96}
    shared = random_prompt(90, seed=5)
    burst = [add(run_id, shared + random_prompt(40, seed=run_id), 6) for run_id in (4, 5, 6, 7)]
    rig.run(*burst)
    assert {run_id: cached(rig)[run_id] for run_id in (4, 5, 6, 7)} == {4: 0, 5: 0, 6: 80, 7: 80}
    assert_as_alone(path, rig, *choices, *burst)


def test_what_is_declared_public_or_to_be_kept_has_a_state_at_its_end(path: Path) -> None:
    rig = Rig(path)
    prompts = [PROMPT + random_prompt(60, seed=seed) for seed in (1, 2, 3)]
    rig.run(add(1, prompts[0], namespace=b"a", public=PublicPrefix(b"p", 85)))
    rig.run(add(2, prompts[1], namespace=b"b", public=PublicPrefix(b"p", 85)))
    rig.run(add(3, prompts[0], namespace=b"b"))
    assert cached(rig) == {1: 0, 2: 80, 3: 0}
    rig.run(add(4, prompts[0], keep=KeepPrefix(60, 70)))
    rig.run(add(5, prompts[2]))
    assert cached(rig)[5] == 64


def test_few_states_go_to_what_was_found_last(path: Path) -> None:
    rig = Rig(path, state_snapshots=2)
    prompts = {seed: random_prompt(100, seed) for seed in range(1, 5)}
    kept = KeepPrefix(600)
    for run_id, seed in enumerate((1, 2, 1, 3, 1, 2), start=1):
        rig.run(add(run_id, prompts[seed], 1))
    assert cached(rig) == {1: 0, 2: 0, 3: 96, 4: 0, 5: 96, 6: 0}
    for run_id, seed in enumerate((4, 1, 2, 3, 4), start=7):
        rig.run(add(run_id, prompts[seed], 1, keep=kept if seed == 4 else None))
    assert cached(rig)[11] == 96
    assert rig.channel.steps[-1].load.num_snapshots == 2


def test_an_aborted_prompt_leaves_what_it_has_computed(path: Path) -> None:
    rig = Rig(path, max_step_tokens=40)
    prompt = random_prompt(200, seed=6)
    rig.channel.commands = [add(1, prompt)]
    for _ in range(3):
        rig.loop.turn()
    rig.run(AbortRequest(1), add(2, prompt))
    assert cached(rig) == {2: 112}
    assert_as_alone(path, rig, add(2, prompt))
