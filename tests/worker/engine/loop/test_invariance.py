"""In float32 a token does not depend on how it was computed: not one bit of its logits does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.protocol.logprobs import record_bytes
from shared.protocol.sampling import ThinkingBudget
from tests.worker.engine.families import FUSED_IN_TORCH, LATENT, MIXTURES, RECURRENT, by_day
from tests.worker.engine.tiny_models import (
    Rig,
    random_prompt,
    save_recurrent,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AbortRequest, AddRequest

PROMPT = random_prompt(37, seed=1)
MAX_TOKENS = 64
SEEDED = {"temperature": 1.0, "seed": 2**63 + 5}


# Every control at once: a token that depended on anything but prompt, seed and output would show.
CONTROLLED: dict[str, Any] = {
    "temperature": 1.1,
    "seed": 99,
    "top_k": 60,
    "top_p": 0.95,
    "min_p": 0.001,
    "typical_p": 0.97,
    "xtc_probability": 0.3,
    "xtc_threshold": 0.02,
    "dynatemp_range": 0.2,
    "dry_multiplier": 0.8,
    "dry_allowed_length": 0,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "min_tokens": 30,
    "logit_bias": tuple((token_id, 3.0) for token_id in range(50, 70)),
    "allowed_token_ids": tuple(range(20, 280)),
    "bad_words": ((55,), (60, 61), (100, 101)),
    "thinking": ThinkingBudget(
        max_tokens=45, begin_ids=(30,), end_id=31, is_open=True, repeats=True
    ),
    "logprobs": 3,
    "prompt_logprobs": 1,
}


def subject(output: list[int] | None = None, **sampling: Any) -> AddRequest:
    return make_add(1, PROMPT, output or [], max_tokens=MAX_TOKENS, ignore_eos=True, **sampling)


def company() -> list[AddRequest]:
    """Other requests of many lengths."""
    lens = [1, 5, 16, 40, 90, 130, 200, 290, 33, 64, 17]
    return [
        make_add(run_id, random_prompt(length, run_id), max_tokens=5 * run_id, ignore_eos=True)
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


def records_of(rig: Rig) -> tuple[bytes, bytes]:
    """Logprobs of the subject's output and prompt."""
    outputs = [each for step in rig.channel.steps for each in step.outputs if each.run_id == 1]
    return (
        b"".join(each.logprobs for each in outputs),
        b"".join(each.prompt_logprobs for each in outputs),
    )


@pytest.fixture(scope="module")
def controlled(tiny_llama: Path) -> Rig:
    rig = Rig(tiny_llama)
    output = rig.run(subject(**CONTROLLED))[1]
    assert 55 not in output
    assert set(output) <= set(range(20, 280))
    assert len({*output}) > 20
    return rig


@pytest.mark.parametrize("num_kv_tokens", [4096, 400], ids=["company", "retracted"])
def test_every_control_in_company(tiny_llama: Path, controlled: Rig, num_kv_tokens: int) -> None:
    rig = Rig(tiny_llama, num_kv_tokens=num_kv_tokens, max_step_tokens=48)
    others = company()
    others += [
        make_add(run_id, random_prompt(20 + run_id, run_id), max_tokens=40, **CONTROLLED)
        for run_id in (20, 21)
    ]
    tokens = rig.run(*others[:5], subject(**CONTROLLED), *others[5:])
    assert (rig.channel.steps[-1].load.num_preemptions > 0) == (num_kv_tokens == 400)
    assert tokens[1] == controlled.channel.tokens()[1]
    assert records_of(rig) == records_of(controlled)


def test_every_control_resumed(tiny_llama: Path, controlled: Rig) -> None:
    output = controlled.channel.tokens()[1]
    assert output[45] == 31
    logprobs, _ = records_of(controlled)
    for num_made in (1, 40, 63):
        rig = Rig(tiny_llama, max_step_tokens=32)
        rest = rig.run(subject(output[:num_made], **CONTROLLED))[1]
        assert output[:num_made] + rest == output
        rest_logprobs, prompt_logprobs = records_of(rig)
        assert rest_logprobs == logprobs[num_made * record_bytes(3) :]
        assert prompt_logprobs == b""


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
def test_resumed_anywhere(tiny_llama: Path, sampling: dict[str, Any]) -> None:
    whole = Rig(tiny_llama)
    output = whole.run(subject(**sampling))[1]
    for num_made in (1, 28, 60):
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


FAMILIES = FUSED_IN_TORCH | MIXTURES | RECURRENT | LATENT
# One for each kind of layer; the others combine the same ones, and run by night.
KINDS_OF_LAYERS = {
    "gemma3",
    "gemma4",
    "gemma4 keys as values",
    "gemma4 experts",
    "llama4",
    "cohere norms",
    "starcoder2",
    "hunyuan alpha",
    "ernie4_5_moe",
    "glm4_moe",
    "gpt_oss",
    "lfm2 moe",
    "granite hybrid moe",
    "falcon_h1 biases",
    "jamba",
    "kimi_linear groups",
    "nemotron_h latent",
    "zamba2",
    "olmo_hybrid",
    "qwen3_5 moe",
    "deepseek_v2 groups",
    "glm_moe_dsa",
    "minicpm3 longrope",
}


@pytest.mark.parametrize("family", by_day(FAMILIES, KINDS_OF_LAYERS))
def test_every_family_in_company_and_in_chunks(tmp_path: Path, family: str) -> None:
    """Retractions, too."""
    model_type, overrides = FAMILIES[family]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    short = make_add(1, PROMPT, max_tokens=12, ignore_eos=True)
    others = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=14, ignore_eos=True)
        for run_id, length in enumerate((1, 40, 90, 33), start=2)
    ]
    alone, rig = Rig(path), Rig(path, num_kv_tokens=224, max_step_tokens=33)
    alone.run(short)
    tokens = rig.run(*others[:2], short, *others[2:])
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert tokens[1] == alone.channel.tokens()[1]
    assert_same_logits(rig, alone)


@pytest.mark.parametrize("num_heads", [3, 5, 6, 7, 9, 10, 11])
def test_any_number_of_heads_may_share_keys_on_two_threads(tmp_path: Path, num_heads: int) -> None:
    """A token by itself is a matrix of so many rows: other kernels than a chunk's compute some."""
    heads: dict[str, Any] = {"num_attention_heads": num_heads, "num_key_value_heads": 1}
    path = save_tiny_model(tmp_path, "gemma", head_dim=64, **heads)
    usual = torch.get_num_threads()
    try:
        made = Rig(path, num_threads=2)
        output = made.run(make_add(1, PROMPT, max_tokens=40, ignore_eos=True))[1]
        resumed = Rig(path, num_threads=2)
        resumed.run(make_add(1, PROMPT, output[:39], max_tokens=40, ignore_eos=True))
    finally:
        torch.set_num_threads(usual)
    assert_same_logits(resumed, made)


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("deepseek_v3", {"q_lora_rank": 96}),
        ("deepseek_v3", {"q_lora_rank": None}),
        (
            "deepseek_v32",
            {"q_lora_rank": 96, "index_topk": 24, "index_n_heads": 5, "index_head_dim": 128},
        ),
    ],
    ids=["queries of latents", "queries", "sparse"],
)
def test_latents_as_long_as_deepseeks_on_two_threads(
    tmp_path: Path, model_type: str, values: dict[str, Any]
) -> None:
    """In chunks, after a prefix hit, in company and resumed: products have 576 and 512 summands."""
    path = save_tiny_model(
        tmp_path,
        model_type,
        **values,
        first_k_dense_replace=2,
        num_key_value_heads=6,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        initializer_range=0.1,
    )
    usual = torch.get_num_threads()
    prompt = random_prompt(150, seed=11)
    add = make_add(1, prompt, max_tokens=40, ignore_eos=True)
    try:
        alone = Rig(path, num_threads=2)
        output = alone.run(add)[1]
        rig = Rig(path, num_threads=2, max_step_tokens=33)
        rig.run(make_add(9, prompt[:100], max_tokens=3, ignore_eos=True))
        rig.run(*company()[:4], add)
        resumed = Rig(path, num_threads=2)
        resumed.run(make_add(1, prompt, output[:17], max_tokens=40, ignore_eos=True))
    finally:
        torch.set_num_threads(usual)
    assert rig.channel.finishes()[1].num_cached_tokens == 96
    assert_same_logits(rig, alone)
    assert_same_logits(resumed, alone)


# One for each kind of recurrent layer: what is around them is in the test of every family.
KINDS_OF_STATES = (
    "falcon_h1 norm",
    "jamba biases",
    "kimi_linear groups",
    "lfm2",
    "mamba2",
    "minimax",
    "qwen3_5 biases",
)


@pytest.mark.parametrize("family", by_day(KINDS_OF_STATES, {*KINDS_OF_STATES} - {"minimax"}))
def test_a_state_does_not_depend_on_how_its_text_was_cut(tmp_path: Path, family: str) -> None:
    """In chunks of any length, token by token, and resumed behind any of them.

    What a state does to the next tokens, eight of them tell.
    """
    path = save_recurrent(tmp_path, family)
    prompt = random_prompt(146, seed=9)
    whole = Rig(path)
    output = whole.run(make_add(1, prompt, max_tokens=70, ignore_eos=True))[1]
    for max_step_tokens in (16, 63, 64, 65):
        rig = Rig(path, max_step_tokens=max_step_tokens, overlap=max_step_tokens == 64)
        assert rig.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))[1] == output[:8]
        assert_same_logits(rig, whole)
    for num_made in (1, 46, 47):
        rig, end = Rig(path), num_made + 8
        rest = rig.run(make_add(1, prompt, output[:num_made], max_tokens=end, ignore_eos=True))[1]
        assert output[:num_made] + rest == output[:end]
        assert_same_logits(rig, whole)


# One in torch's own convolutions and one delta net; the others, six seconds each, by night.
APART = {"lfm2", "qwen3_5 biases"}


@pytest.mark.parametrize("family", by_day(KINDS_OF_STATES, APART))
def test_many_short_and_long_texts_keep_their_states_apart(tmp_path: Path, family: str) -> None:
    """More requests than slots, of lengths around blocks, with retractions and aborts."""
    path = save_recurrent(tmp_path, family)
    adds = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=40, ignore_eos=True)
        for run_id, length in enumerate((1, 3, 63, 64, 65, 127, 128, 129), start=1)
    ]
    rig = Rig(path, max_running=4, num_kv_tokens=256, max_step_tokens=37)
    aborted = make_add(99, random_prompt(70, 99), max_tokens=40, ignore_eos=True)
    rig.run(*adds[:4], aborted, AbortRequest(99), *adds[4:])
    alone = Rig(path)
    for add in adds:
        alone.run(add)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert goes_on_behind_states(rig.runner.batches)
    keys = [key for key in rig.logits if key[0] != 99]
    assert keys
    assert all(torch.equal(rig.logits[key], alone.logits[key]) for key in keys)


def goes_on_behind_states(batches: list[list[tuple[int, int, int]]]) -> bool:
    """Whether one that was retracted begins within what it had computed."""
    ends: dict[int, int] = {}
    is_restored = False
    for run_id, start, end in (entry for batch in batches for entry in batch):
        is_restored |= 0 < start < ends.get(run_id, 0)
        ends[run_id] = end
    return is_restored
