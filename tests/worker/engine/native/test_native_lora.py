"""LoRA adapters beside the C++ decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.lora_adapters import save_adapter, save_merged
from tests.worker.engine.lora.test_lora import add, errors_of
from tests.worker.engine.native.test_native import (
    MAX_ERROR,
    native_rig,
    needs_bfloat16,
    save_rounded,
)
from tests.worker.engine.tiny_models import Rig, assert_like_reference, random_prompt
from worker.engine.native.kernel_set import AVX2, AVX512, AVX512_BF16, KernelSet
from worker.engine_link.engine_messages import DropAdapter, LoadAdapter

pytestmark = needs_bfloat16


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With biases everywhere, and sizes that fill no block."""
    path = tmp_path_factory.mktemp("base")
    return save_rounded(path, "llama", attention_bias=True, mlp_bias=True, initializer_range=0.15)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("adapters")
    return {
        "one": save_adapter(path / "one", base, size=0.1),
        "two": save_adapter(path / "two", base, size=0.3, seed=2, modules=["up_proj", "k_proj"]),
    }


def loads_of(adapters: dict[str, Path]) -> list[LoadAdapter]:
    return [LoadAdapter(name, str(path)) for name, path in adapters.items()]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_mixed_batch_is_close_to_merged_weights(
    base: Path, adapters: dict[str, Path], tmp_path: Path, num_threads: int
) -> None:
    paths = {name: save_merged(tmp_path / name, base, path, 2.0) for name, path in adapters.items()}
    rig = native_rig(base, max_step_tokens=40, num_threads=num_threads)
    names = ["one", "", "two", "one", "two"]
    prompts = [random_prompt(length, 5) for length in (30, 30, 30, 3, 70)]
    outputs = rig.run(
        *loads_of(adapters), *(add(i, prompts[i], name) for i, name in enumerate(names))
    )
    assert errors_of(rig) == ["", ""]
    for idx, name in enumerate(names):
        text = prompts[idx] + outputs[idx]
        assert_like_reference(({"": base} | paths)[name], rig, idx, text, MAX_ERROR)
        if name:
            with pytest.raises(AssertionError):  # the adapter is more than a rounding error
                assert_like_reference(base, rig, idx, text, 2 * MAX_ERROR)


def test_not_one_bit_depends_on_the_company(base: Path, adapters: dict[str, Path]) -> None:
    subjects = {1: add(1, random_prompt(37, 1), "one", max_tokens=40)}
    subjects[2] = add(2, random_prompt(41, 2), max_tokens=40)
    others = [add(n, random_prompt(9 * n, n), ["", "one", "two"][n % 3]) for n in range(3, 12)]
    together = native_rig(base, max_step_tokens=50)
    together.run(*loads_of(adapters), *others, *subjects.values())
    for run_id, subject in subjects.items():
        alone: Rig = native_rig(base)
        alone.run(*loads_of(adapters), subject)
        keys = [key for key in together.logits if key[0] == run_id]
        assert len(keys) == 40
        for key in keys:
            assert torch.equal(together.logits[key], alone.logits[key]), key


@pytest.mark.parametrize("kernel_set", [AVX2, AVX512], ids=lambda each: each.name)
def test_kernel_sets_that_widen_give_the_same_bits(
    base: Path, adapters: dict[str, Path], kernel_set: KernelSet
) -> None:
    rigs = [native_rig(base, cpu_kernels=each.name) for each in (AVX512_BF16, kernel_set)]
    for rig in rigs:
        rig.run(*loads_of(adapters), add(1, random_prompt(37, 1), "one", max_tokens=8))
    expected, found = (rig.logits for rig in rigs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("rank", [1, 9, 16, 33])
def test_ranks_that_fill_no_block(base: Path, tmp_path: Path, rank: int) -> None:
    path = save_adapter(tmp_path / "one", base, size=0.2 / rank, rank=rank, r=rank)
    merged = save_merged(tmp_path / "merged", base, path, 8 / rank)
    rig = native_rig(base)
    prompt = random_prompt(70, 1)
    output = rig.run(LoadAdapter("one", str(path)), add(1, prompt, "one"))[1]
    assert_like_reference(merged, rig, 1, prompt + output, MAX_ERROR)


def test_a_dropped_adapter_stays_for_those_that_run(base: Path, adapters: dict[str, Path]) -> None:
    prompt = random_prompt(20, 1)
    whole = native_rig(base).run(*loads_of(adapters), add(1, prompt, "one"))[1]
    rig = native_rig(base)
    first, second = loads_of(adapters)
    requests = add(1, prompt, "one"), DropAdapter("one"), second, add(2, prompt, "one")
    assert rig.run(first, *requests) == {1: whole, 2: []}


def test_retracted_and_resumed_elsewhere(base: Path, adapters: dict[str, Path]) -> None:
    subjects = [
        add(n, random_prompt(30, n), ["", "one", "two"][n % 3], max_tokens=80) for n in range(6)
    ]
    loads = loads_of(adapters)
    roomy, tight = native_rig(base), native_rig(base, num_kv_tokens=256)
    outputs = roomy.run(*loads, *subjects)
    assert tight.run(*loads, *subjects) == outputs
    assert tight.channel.steps[-1].load.num_preemptions > 0
    again = add(1, random_prompt(30, 1), "one", max_tokens=80, output_ids=outputs[1][:31])
    assert outputs[1][:31] + native_rig(base).run(*loads, again)[1] == outputs[1]
