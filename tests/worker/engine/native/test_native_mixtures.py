"""Mixtures of experts in the C++ decoder: right, in any company, with each of their parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.lora_adapters import save_adapter, save_merged
from tests.worker.engine.families import MIXTURES, by_day
from tests.worker.engine.lora.test_lora import add
from tests.worker.engine.models.test_features import EXPERT_PARTS, without_part
from tests.worker.engine.native.test_kernel_sets import EVERYWHERE, run_both_ways
from tests.worker.engine.native.test_native import native_rig, needs_bfloat16, save_rounded
from tests.worker.engine.tiny_models import Rig, random_prompt, reference_logits
from tests.worker.engine_fakes import make_add
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.native.kernel_set import AVX2, AVX512, AVX512_BF16, KernelSet
from worker.engine_link.engine_messages import LoadAdapter

pytestmark = needs_bfloat16

# With factors of weights, values shorter than keys, another activation of experts.
IN_TORCH = {"cohere2_moe", "mimo_v2_flash", "flex_olmo"}
FAMILIES = [each for each in MIXTURES if each not in IN_TORCH]
# A router in groups with a correction; sinks and biases; a shared expert with a gate.
DAILY = ["glm4_moe", "gpt_oss", "qwen2_moe"]
# Relative, of the best quarter of logits: where a near tie of the router falls otherwise, what
# follows in that text is changed, too.
MAX_ERROR = 0.03

Save = Callable[[str], Path]


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    paths: dict[str, Path] = {}

    def saved(family: str) -> Path:
        if family not in paths:
            model_type, overrides = MIXTURES[family]
            paths[family] = save_rounded(tmp_path_factory.mktemp("model"), model_type, **overrides)
        return paths[family]

    return saved


def assert_near(path: Path, rig: Rig, run_id: int, token_ids: list[int]) -> None:
    reference = reference_logits(path, token_ids)
    positions = sorted(position for each_id, position in rig.logits if each_id == run_id)
    errors = [
        (rig.logits[run_id, position] - reference[position - 1]).norm()
        / reference[position - 1].norm()
        for position in positions
    ]
    assert torch.tensor(errors).quantile(0.25) < MAX_ERROR


@pytest.mark.parametrize("family", by_day(FAMILIES, DAILY))
def test_every_mixture(save: Save, family: str) -> None:
    """Mixed lengths, chunks, prefix hits, retractions."""
    path = save(family)
    rig = native_rig(path, max_step_tokens=33, num_kv_tokens=224, max_running=8)
    shared = random_prompt(40, seed=2)
    prompts = {1: shared + random_prompt(5, seed=3)}
    prompts |= {run_id: random_prompt(length, run_id) for run_id, length in ((2, 1), (3, 33))}
    prompts |= {run_id: shared + random_prompt(12 * run_id, seed=run_id) for run_id in (4, 5)}
    outputs = rig.run(
        *(make_add(run_id, ids, max_tokens=32, ignore_eos=True) for run_id, ids in prompts.items())
    )
    for run_id, prompt in prompts.items():
        assert_near(path, rig, run_id, prompt + outputs[run_id])
    assert rig.channel.steps[-1].load.num_preemptions > 0


@pytest.mark.parametrize("family", by_day(DAILY, ["qwen2_moe"]))
def test_no_bit_of_a_mixture_depends_on_the_batch(save: Save, family: str) -> None:
    run_both_ways(save(family), AVX512_BF16)


@pytest.mark.nightly
@pytest.mark.parametrize("kernel_set", EVERYWHERE)
def test_nor_by_another_kernel_set(save: Save, kernel_set: KernelSet) -> None:
    run_both_ways(save("gpt_oss"), kernel_set)


@pytest.mark.parametrize("family", by_day(DAILY, ["glm4_moe"]))
def test_kernel_sets_that_widen_give_the_same_bits(save: Save, family: str) -> None:
    rigs = [native_rig(save(family), cpu_kernels=each.name) for each in (AVX512_BF16, AVX512, AVX2)]
    for rig in rigs:
        rig.run(make_add(1, random_prompt(60, seed=1), max_tokens=8, ignore_eos=True))
    expected, *others = (rig.logits for rig in rigs)
    for found in others:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)


def test_retracted_and_resumed_elsewhere(save: Save) -> None:
    path = save("glm4_moe")
    subjects = [
        make_add(n, random_prompt(30, n), max_tokens=80, ignore_eos=True, temperature=1.0, seed=n)
        for n in range(6)
    ]
    roomy, tight = native_rig(path, num_threads=2), native_rig(path, num_kv_tokens=256)
    outputs = roomy.run(*subjects)
    assert tight.run(*subjects) == outputs
    assert tight.channel.steps[-1].load.num_preemptions > 0
    again = replace_outputs(subjects[1], outputs[1][:31])
    assert outputs[1][:31] + native_rig(path).run(again)[1] == outputs[1]


def replace_outputs(command: Any, output_ids: list[int]) -> Any:
    return make_add(
        command.run_id,
        random_prompt(30, command.run_id),
        output_ids,
        max_tokens=80,
        ignore_eos=True,
        temperature=1.0,
        seed=command.run_id,
    )


def logits(path: Path) -> torch.Tensor:
    """Behind a prompt that is longer than windows."""
    rig = native_rig(path)
    rig.run(make_add(1, random_prompt(60, seed=4), max_tokens=1, ignore_eos=True))
    return rig.logits[1, 60]


def assert_moved(with_it: torch.Tensor, without: torch.Tensor) -> None:
    assert (with_it - without).norm() / with_it.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "module", "part"), [each for each in EXPERT_PARTS if each[0] in FAMILIES], ids=str
)
def test_a_part_of_experts_that_is_left_out_moves_the_logits(
    save: Save,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    module: ModuleType,
    part: dict[str, Any],
) -> None:
    with_it = logits(save(family))
    monkeypatch.setattr(module, "with_experts", without_part(part))
    assert_moved(with_it, logits(save(family)))


@pytest.mark.nightly
def test_sinks_that_are_left_out_move_the_logits(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_them, read = logits(save("gpt_oss")), DecoderWeights.sinks

    def nothing(weights: DecoderWeights, layer_id: int) -> torch.Tensor:
        return torch.full_like(read(weights, layer_id), -torch.inf)

    monkeypatch.setattr(DecoderWeights, "sinks", nothing)
    assert_moved(with_them, logits(save("gpt_oss")))


def test_an_adapter_of_a_shared_expert_goes_through_its_gate(save: Save, tmp_path: Path) -> None:
    """And the tokens of others keep their bits."""
    path = save("qwen2_moe")
    adapter = save_adapter(tmp_path / "one", path, size=0.2)
    merged = save_merged(tmp_path / "merged", path, adapter, 2.0)
    prompts = [random_prompt(length, length) for length in (30, 41)]
    rig, alone = native_rig(path), native_rig(path)
    load = LoadAdapter("one", str(adapter))
    outputs = rig.run(load, add(0, prompts[0], "one"), add(1, prompts[1]))
    assert_near(merged, rig, 0, prompts[0] + outputs[0])
    with pytest.raises(AssertionError):  # the adapter is more than a rounding error
        assert_near(path, rig, 0, prompts[0] + outputs[0])
    alone.run(add(1, prompts[1]))
    assert all(torch.equal(rig.logits[key], alone.logits[key]) for key in alone.logits)
