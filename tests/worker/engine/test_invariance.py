"""In float32 a token does not depend on how it was computed: not one bit of its logits does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine_messages import AddRequest

PROMPT = random_prompt(37, seed=1)
MAX_TOKENS = 100
SEEDED = {"temperature": 1.0, "seed": 2**63 + 5}


def subject(output: list[int] | None = None, **sampling: Any) -> AddRequest:
    return make_add(1, PROMPT, output or [], max_tokens=MAX_TOKENS, ignore_eos=True, **sampling)


def company() -> list[AddRequest]:
    """Other requests of many lengths."""
    lens = [1, 5, 16, 40, 90, 130, 200, 290, 33, 64, 17]
    return [
        make_add(run_id, random_prompt(length, run_id), max_tokens=8 * run_id, ignore_eos=True)
        for run_id, length in enumerate(lens, start=2)
    ]


def assert_same_logits(rig: Rig, reference: Rig) -> None:
    keys = [key for key in rig.logits if key[0] == 1]
    different = [key for key in keys if not torch.equal(rig.logits[key], reference.logits[key])]
    assert keys
    assert different == []


@pytest.fixture(scope="module")
def alone(tiny_llama: Path) -> Rig:
    rig = Rig(tiny_llama)
    rig.run(subject())
    return rig


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
def test_resumed_anywhere(tiny_llama: Path, sampling: dict[str, Any]) -> None:
    whole = Rig(tiny_llama)
    output = whole.run(subject(**sampling))[1]
    for num_made in (1, 28, 83):
        rig = Rig(tiny_llama, max_step_tokens=32)
        rest = rig.run(subject(output[:num_made], **sampling))[1]
        assert output[:num_made] + rest == output
        assert_same_logits(rig, whole)


@pytest.mark.parametrize("max_step_tokens", [16, 33, 512])
def test_in_company(tiny_llama: Path, alone: Rig, max_step_tokens: int) -> None:
    rig = Rig(tiny_llama, max_step_tokens=max_step_tokens)
    others = company()
    tokens = rig.run(*others[:5], subject(), *others[5:])
    assert tokens[1] == alone.channel.tokens()[1]
    assert_same_logits(rig, alone)


def test_after_retractions(tiny_llama: Path, alone: Rig) -> None:
    rig = Rig(tiny_llama, num_kv_tokens=400)
    others = company()
    tokens = rig.run(*others[:5], subject(), *others[5:])
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert tokens[1] == alone.channel.tokens()[1]
    assert_same_logits(rig, alone)


@pytest.mark.slow
def test_with_two_threads(tiny_llama: Path, alone: Rig) -> None:
    rig = Rig(tiny_llama, num_threads=2)
    tokens = rig.run(*company()[:5], subject())
    torch.set_num_threads(1)
    assert tokens[1] == alone.channel.tokens()[1]
    assert_same_logits(rig, alone)


def test_with_one_row_in_a_kv_group(tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, num_key_value_heads=6)
    alone, rig = Rig(path), Rig(path)
    alone.run(subject())
    rig.run(*company(), subject())
    assert_same_logits(rig, alone)
