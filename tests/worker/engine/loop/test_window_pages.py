"""Layers with a window keep what it sees, and nothing shows it: bit for bit as if they kept all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, MIXTURES, by_day
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.cache.page_allocator import PoolNeeds
from worker.engine.cache.window_pages import num_running_pages
from worker.engine_link.engine_messages import AddRequest

FAMILIES = {
    name: family
    for name, family in (FUSED | FUSED_IN_TORCH | MIXTURES).items()
    if any("window" in key or "chunk" in key for key in family[1])
    and family[1].get("sliding_window", 0) is not None
}
NATIVE = {"dtype": "bfloat16", "cpu_kernels": "native"}
PROMPT = random_prompt(150, seed=1)
GIB = 1 << 30


def add(run_id: int, prompt: list[int], max_tokens: int = 30, **options: Any) -> AddRequest:
    return make_add(run_id, prompt, max_tokens=max_tokens, ignore_eos=True, **options)


def has_windows(rig: Rig) -> bool:
    return rig.engine._scheduler._ledger.windows is not None


def cached(rig: Rig) -> dict[int, int]:
    """Tokens of each prompt that came from the cache."""
    return {run_id: each.num_cached_tokens for run_id, each in rig.channel.finishes().items()}


def check_as_alone(path: Path, **config: Any) -> None:
    """In company, in chunks, retracted, resumed, behind what others have left."""
    rig = Rig(path, max_running=4, max_step_tokens=32, num_kv_tokens=640, **config)
    assert has_windows(rig)
    adds = [add(run_id, PROMPT[:70] + random_prompt(100, run_id), 40) for run_id in (2, 3, 4, 5)]
    adds.insert(0, add(1, PROMPT, 60))
    answer = rig.run(*adds)[1]
    others = [
        add(6, PROMPT + answer + random_prompt(20, 6)),
        add(7, PROMPT + random_prompt(20, 7)),
        add(8, PROMPT[:40] + random_prompt(20, 8)),
        add(9, PROMPT, 60, output_ids=answer[:41]),
    ]
    for each in others:
        rig.run(each)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert {run_id: cached(rig)[run_id] for run_id in (6, 7, 8)} == {6: 208, 7: 144, 8: 32}
    alone = Rig(path, max_running=160, **config)
    assert not has_windows(alone)
    for each in adds + others:
        alone.run(each)
    assert rig.logits.keys() == alone.logits.keys()
    assert [key for key in rig.logits if not torch.equal(rig.logits[key], alone.logits[key])] == []


@pytest.mark.parametrize("family", by_day(FAMILIES, {"gemma3"}))
def test_a_token_is_the_same_as_with_all_keys(tmp_path: Path, family: str) -> None:
    model_type, overrides = FAMILIES[family]
    check_as_alone(save_tiny_model(tmp_path, model_type, **overrides))


@pytest.mark.parametrize("kv_dtype", by_day(["auto", "int8"], ["auto"]))
def test_the_same_in_our_cpp(tmp_path: Path, kv_dtype: str) -> None:
    model_type, overrides = FAMILIES["qwen2 windows"]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    check_as_alone(path, **NATIVE, speculate="ngram", kv_dtype=kv_dtype)


@pytest.mark.parametrize(
    ("layers", "window", "kv_bytes", "num_gib", "num_tokens"),
    [
        pytest.param((62, 52), 1024, 8192, (19.0, 62.0), (43_520, 16_912), id="Gemma 3 27B"),
        pytest.param((24, 12), 128, 2048, (3.4, 6.0), (308_224, 174_752), id="GPT-OSS 20B"),
        pytest.param((32, 32), 8192, 2048, (3.1, 8.0), (768_384, 131_072), id="all have windows"),
    ],
)
def test_what_a_text_of_131072_tokens_takes_and_how_many_fit_into_8_gib(
    layers: tuple[int, int],  # all, and those with a window
    window: int,
    kv_bytes: int,
    num_gib: tuple[float, float],
    num_tokens: tuple[int, int],
) -> None:
    num_running = num_running_pages(window, 16, max_running=4, max_step_tokens=512)
    alike = PoolNeeds(16, layers[0] * kv_bytes)
    needs = PoolNeeds(16, layers[0] * kv_bytes, layers[1] * kv_bytes, num_running)
    sizes = [each.of_tokens(131_072) for each in (needs, alike)]
    taken = [each.num_bytes(size) for each, size in zip((needs, alike), sizes, strict=True)]
    assert tuple(round(each / GIB, 1) for each in taken) == num_gib
    fitting = [each.of_bytes(8 * GIB) for each in (needs, alike)]
    assert tuple(size.num_pages * 16 for size in fitting) == num_tokens
    assert needs.num_bytes(fitting[0]) <= 8 * GIB
