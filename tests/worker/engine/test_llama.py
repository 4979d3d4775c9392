from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.tiny_models import (
    CONTEXT_LEN,
    Rig,
    random_prompt,
    reference_logits,
    save_tiny_llama,
)
from tests.worker.engine_fakes import make_add

MAX_ERROR = 1e-4

VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "one head a group": {"num_key_value_heads": 6},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def assert_like_reference(path: Path, rig: Rig, run_id: int, token_ids: list[int]) -> None:
    """All logits that the engine computed for this run."""
    reference = reference_logits(path, token_ids)
    positions = sorted(position for each_id, position in rig.logits if each_id == run_id)
    ours = torch.stack([rig.logits[run_id, position] for position in positions])
    theirs = reference[[position - 1 for position in positions]]
    assert (ours - theirs).norm() / theirs.norm() < MAX_ERROR


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_and_decode_give_the_logits_of_transformers(variant: str, tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, **VARIANTS[variant])
    rig = Rig(path)
    prompt = random_prompt(37, seed=1)
    output = rig.run(make_add(1, prompt, max_tokens=64, ignore_eos=True))[1]
    assert len(output) == 64
    assert_like_reference(path, rig, 1, prompt + output)


def test_lengths_mixed_in_one_batch(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, max_step_tokens=48)
    prompts = {
        run_id: random_prompt(length, run_id)
        for run_id, length in enumerate([1, 2, 15, 16, 17, 31, 33, 48, 49, 130, 300])
    }
    outputs = rig.run(
        *(make_add(run_id, ids, max_tokens=9, ignore_eos=True) for run_id, ids in prompts.items())
    )
    for run_id, prompt in prompts.items():
        assert_like_reference(tiny_llama, rig, run_id, prompt + outputs[run_id])


@pytest.mark.parametrize("max_step_tokens", [16, 17, 63, 64, 200])
def test_chunk_borders(tiny_llama: Path, max_step_tokens: int) -> None:
    rig = Rig(tiny_llama, max_step_tokens=max_step_tokens)
    prompt = random_prompt(200, seed=3)
    output = rig.run(make_add(1, prompt, max_tokens=4, ignore_eos=True))[1]
    assert_like_reference(tiny_llama, rig, 1, prompt + output)


def test_a_prefix_hit(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(100, seed=4)
    rig.run(make_add(1, prompt, max_tokens=4))
    other = prompt[:90] + random_prompt(20, seed=5)
    output = rig.run(make_add(2, other, max_tokens=8, ignore_eos=True))[2]
    assert rig.channel.finishes()[2].num_cached_tokens == 80
    assert_like_reference(tiny_llama, rig, 2, other + output)


def test_shards(tiny_llama: Path, tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, max_shard_size="50KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    prompt = random_prompt(20, seed=6)
    whole, sharded = Rig(tiny_llama), Rig(path)
    add = make_add(1, prompt, max_tokens=5, ignore_eos=True)
    assert whole.run(add) == sharded.run(add)


def test_the_whole_context(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(CONTEXT_LEN - 6, seed=7)
    output = rig.run(make_add(1, prompt, max_tokens=100, ignore_eos=True))[1]
    assert len(output) == 6
    assert_like_reference(tiny_llama, rig, 1, prompt + output)


def test_bfloat16_is_close(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, dtype="bfloat16")
    prompt = random_prompt(150, seed=8)
    output = rig.run(make_add(1, prompt, max_tokens=16, ignore_eos=True))[1]
    reference = reference_logits(tiny_llama, prompt + output)
    ours = torch.stack([rig.logits[1, 150 + idx] for idx in range(16)])
    assert (ours - reference[149:165]).norm() / reference[149:165].norm() < 0.1
