"""Several LoRA adapters on one model at once: each as if it were merged into the weights."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.grammar import grammar_engine
from shared.protocol.finish import FinishReason
from shared.protocol.sampling import BeamParams, Grammar, GrammarKind
from tests.lora_adapters import MODULES, save_adapter, save_adapter_files, save_merged
from tests.worker.engine.families import MIXTURES, by_day
from tests.worker.engine.json_llama import encode, save_json_llama
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.cpu.model_runner import TorchForward
from worker.engine.lora.adapter_pool import AdapterPool
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.transformers_model import TransformersModel
from worker.engine_link.engine_messages import AdapterLoaded, AddRequest, DropAdapter, LoadAdapter


def save_mixture(path: Path, family: str) -> Path:
    """With experts in one tensor: adapters are for the others, the shared one among them."""
    model_type, overrides = MIXTURES[family]
    return save_tiny_model(path, model_type, **overrides)


MakeModel = Callable[[Path], Path]
MODELS: dict[str, MakeModel] = {
    "llama": save_tiny_llama,
    "qwen3": lambda path: save_tiny_model(path, "qwen3"),
    "glm": lambda path: save_tiny_model(path, "glm", pad_token_id=2),
    "phi3": lambda path: save_tiny_model(path, "phi3", pad_token_id=2),
    "gemma": lambda path: save_tiny_model(path, "gemma"),
    "cohere": lambda path: save_tiny_model(path, "cohere"),
    "qwen2_moe": lambda path: save_mixture(path, "qwen2_moe"),
    "glm4_moe": lambda path: save_mixture(path, "glm4_moe"),
    "gpt_neox": lambda path: save_tiny_model(path, "gpt_neox", head_dim=8),
    "opt": lambda path: save_tiny_model(path, "opt", word_embed_proj_dim=48),
    "transformers": lambda path: save_tiny_model(path, "phimoe"),
}
# One for each way in which projections are named and joined.
WAYS = ("llama", "glm", "phi3", "qwen2_moe", "gpt_neox", "opt", "transformers")


def add(run_id: int, prompt: list[int], adapter: str = "", **values: Any) -> AddRequest:
    """Prefixes of different adapters are not shared, as the I/O process sees to."""
    defaults: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    defaults["namespace"] = adapter.encode()
    return make_add(run_id, prompt, adapter=adapter, **defaults | values)


def errors_of(rig: Rig) -> list[str]:
    return [event.error for event in rig.channel.events if isinstance(event, AdapterLoaded)]


@pytest.mark.parametrize("model", by_day(MODELS, WAYS))
def test_a_mixed_batch_equals_merged_weights(model: str, tmp_path: Path) -> None:
    base = MODELS[model](tmp_path / "base")
    joined = ("qkv_proj", "gate_up_proj", "query_key_value", "dense_h_to_4h", "fc1", "out_proj")
    one = save_adapter(tmp_path / "one", base, modules=(*MODULES, *joined), lora_alpha=8)
    some = ("v_proj", "down_proj", "dense", "fc2")  # with rank-stabilised scaling, and another rank
    two = save_adapter(tmp_path / "two", base, modules=some, seed=2, rank=9, use_rslora=True)
    paths = {
        "": base,
        "one": save_merged(tmp_path / "merged-one", base, one, 8 / 4),
        "two": save_merged(tmp_path / "merged-two", base, two, 8 / math.sqrt(9)),
    }
    rig = Rig(base, max_step_tokens=40)
    is_general = model == "transformers"
    forward = rig.runner._forward._forward
    assert isinstance(forward, TorchForward)
    assert isinstance(forward._model, TransformersModel) == is_general
    loads = LoadAdapter("one", str(one)), LoadAdapter("two", str(two))
    names = ["", "one", "two", "one", "", "two", "one"]
    prompts = [random_prompt(length, 5) for length in (30, 30, 30, 3, 50, 17, 33)]
    outputs = rig.run(*loads, *(add(i, prompts[i], name) for i, name in enumerate(names)))
    assert errors_of(rig) == ["", ""]
    assert len({tuple(outputs[idx]) for idx in (0, 1, 2)}) == 3  # they do make a difference
    for idx, name in enumerate(names):
        assert_like_reference(paths[name], rig, idx, prompts[idx] + outputs[idx])
        if idx == names.index(name):
            alone = Rig(paths[name])
            assert alone.run(add(idx, prompts[idx]))[idx] == outputs[idx]


def test_not_one_bit_depends_on_the_company(tiny_llama: Path, tmp_path: Path) -> None:
    one = save_adapter(tmp_path / "one", tiny_llama)
    two = save_adapter(tmp_path / "two", tiny_llama, seed=2, rank=3)
    loads = LoadAdapter("one", str(one)), LoadAdapter("two", str(two))
    subject = add(1, random_prompt(37, 1), "one", max_tokens=40)
    alone, together = Rig(tiny_llama), Rig(tiny_llama, max_step_tokens=50)
    alone.run(*loads, subject)
    others = [add(n, random_prompt(9 * n, n), ["", "one", "two"][n % 3]) for n in range(2, 12)]
    together.run(*loads, *others, subject)
    keys = [key for key in together.logits if key[0] == 1]
    assert len(keys) == 40
    for key in keys:
        assert torch.equal(together.logits[key], alone.logits[key]), key


def test_base_requests_are_as_without_adapters(tiny_llama: Path, tmp_path: Path) -> None:
    one = save_adapter(tmp_path / "one", tiny_llama)
    rig, plain = Rig(tiny_llama), Rig(tiny_llama)
    base = add(1, random_prompt(40, 1))
    rig.run(LoadAdapter("one", str(one)), base, add(2, random_prompt(20, 2), "one"))
    plain.run(base)
    for key in plain.logits:
        assert torch.equal(rig.logits[key], plain.logits[key])


def test_retracted_and_resumed_elsewhere(tiny_llama: Path, tmp_path: Path) -> None:
    """Too few pages for all: some are retracted, and computed once more; one goes on elsewhere."""
    one = save_adapter(tmp_path / "one", tiny_llama)
    load = LoadAdapter("one", str(one))
    subjects = [
        add(n, random_prompt(30, n), "one" if n % 2 else "", max_tokens=48) for n in range(6)
    ]
    roomy, tight = Rig(tiny_llama), Rig(tiny_llama, num_kv_tokens=256)
    outputs = roomy.run(load, *subjects)
    assert tight.run(load, *subjects) == outputs
    assert tight.channel.steps[-1].load.num_preemptions > 0
    elsewhere = Rig(tiny_llama)
    prompt = random_prompt(30, 1)
    rest = elsewhere.run(load, add(1, prompt, "one", max_tokens=48, output_ids=outputs[1][:31]))
    assert outputs[1][:31] + rest[1] == outputs[1]


def test_a_dropped_adapter_stays_for_those_that_run(tiny_llama: Path, tmp_path: Path) -> None:
    one = save_adapter(tmp_path / "one", tiny_llama)
    load, prompt = LoadAdapter("one", str(one)), random_prompt(20, 1)
    whole = Rig(tiny_llama).run(load, add(1, prompt, "one"))[1]
    rig = Rig(tiny_llama)
    outputs = rig.run(load, add(1, prompt, "one"), DropAdapter("one"), add(2, prompt, "one"))
    assert outputs == {1: whole, 2: []}
    finish = rig.channel.finishes()[2]
    assert finish.reason is FinishReason.ERROR
    assert finish.message == "the LoRA adapter one is not loaded"


def test_one_that_waits_for_its_grammar_keeps_its_adapter(tmp_path: Path) -> None:
    base = save_json_llama(tmp_path / "base")
    one = save_adapter(tmp_path / "one", base, size=0.4)
    wanted = Grammar(GrammarKind.REGEX, "[a-z]{20,30}", grammar_engine())
    prompt = encode("Say something: ")
    asked = add(1, prompt, "one", grammar=wanted, max_tokens=40, ignore_eos=False)
    load = LoadAdapter("one", str(one))
    dropped, kept, plain = Rig(base), Rig(base), Rig(base)
    output = dropped.run(load, asked, DropAdapter("one"))[1]
    assert output == kept.run(load, asked)[1]
    assert output != plain.run(add(1, prompt, grammar=wanted, max_tokens=40, ignore_eos=False))[1]


def test_beams_have_the_adapter_too(tiny_llama: Path, tmp_path: Path) -> None:
    one = save_adapter(tmp_path / "one", tiny_llama)
    merged = save_merged(tmp_path / "merged", tiny_llama, one, 2.0)
    prompt, beam = random_prompt(20, 1), BeamParams(3, 3)
    rig, reference = Rig(tiny_llama), Rig(merged)
    rig.run(LoadAdapter("one", str(one)), add(1, prompt, "one", beam=beam))
    reference.run(add(1, prompt, beam=beam))
    ours, theirs = (each.channel.finishes()[1].beams for each in (rig, reference))
    assert len(ours) == 3
    assert [each.token_ids for each in ours] == [each.token_ids for each in theirs]


def test_beyond_max_loras_the_idle_one_gives_way(tiny_llama: Path, tmp_path: Path) -> None:
    paths = {
        name: str(save_adapter(tmp_path / name, tiny_llama, seed=seed))
        for seed, name in enumerate("abc", 1)
    }
    loads = [LoadAdapter(name, path) for name, path in paths.items()]
    prompt = random_prompt(20, 1)
    alone = {
        load.adapter: Rig(tiny_llama).run(load, add(1, prompt, load.adapter))[1] for load in loads
    }
    assert len(set(map(tuple, alone.values()))) == 3
    rig = Rig(tiny_llama, max_loras=2)
    rig.run(*loads)
    assert errors_of(rig) == ["", "", ""]
    for run_id, name in enumerate("acb", 1):  # each time another one is read again
        assert rig.run(add(run_id, prompt, name))[run_id] == alone[name]
    together = rig.run(*(add(run_id, prompt, name) for run_id, name in enumerate("abc", 11)))
    assert [together[run_id] for run_id in (11, 12, 13)] == list(alone.values())


def test_the_one_that_was_used_last_stays(tiny_llama: Path, tmp_path: Path) -> None:
    one = save_adapter(tmp_path / "one", tiny_llama)
    num_read: Counter[str] = Counter()

    def make(weights: LoraWeights) -> dict[str, LoraProjection]:
        num_read["all"] += 1
        return {}

    pool = AdapterPool(make, torch.float32, max_adapters=2, max_rank=64)
    for name in "ab":
        pool.load(name, one)
    used = pool.get("a")
    pool.load("c", one)  # b gives way
    assert num_read["all"] == 3
    assert pool.get("a") is used
    pool.load("d", one)  # so does c
    pool.get("b")  # and a, with which a request runs
    assert num_read["all"] == 5
    assert pool.get("a") is used
    assert num_read["all"] == 5
    shutil.rmtree(one)
    assert pool.get("c") is None
    assert "the LoRA adapter c is not loaded: " in pool.absence("c")


def test_without_room_for_any_none_is_loaded(tiny_llama: Path, tmp_path: Path) -> None:
    one = str(save_adapter(tmp_path / "one", tiny_llama))
    rig = Rig(tiny_llama, max_loras=0)
    rig.run(LoadAdapter("one", one), add(1, [5], "one"))
    assert errors_of(rig) == ["this worker has max_loras=0"]
    message = rig.channel.finishes()[1].message
    assert message == "the LoRA adapter one is not loaded: this worker has max_loras=0"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"use_dora": True}, "use_dora=true is not supported"),
        ({"modules_to_save": ["lm_head"]}, 'modules_to_save=["lm_head"] is not supported'),
        ({"bias": "all"}, 'bias="all" is not supported'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=true is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, 'rank_pattern={"q_proj": 8} is not supported'),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights="pissa" is not supported'),
        ({"peft_type": "IA3"}, 'peft_type="IA3" is not supported'),
        ({"task_type": "SEQ_CLS"}, 'task_type="SEQ_CLS" is not supported'),
        ({"a_new_one": 3}, "a_new_one=3 is not supported"),
        ({"r": 0}, "'r' must be a positive integer, not 0"),
        ({"r": 5}, "has shape [4, 48], and r is 5"),
        ({"lora_alpha": None}, "'lora_alpha' must be a number, not null"),
        ({"r": 65, "rank": 65}, "r=65 is more than max_lora_rank=64"),
    ],
)
def test_a_configuration_that_is_refused(
    tiny_llama: Path, tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    path = save_adapter(tmp_path / "one", tiny_llama, modules=["q_proj"], **config)
    rig = Rig(tiny_llama)
    rig.run(LoadAdapter("one", str(path)))
    assert sentence in errors_of(rig)[0]


PREFIX = "base_model.model.model."


@pytest.mark.parametrize(
    ("module", "shape", "sentence"),
    [
        (
            "layers.0.self_attn.q_proj.lora_A",
            (4, 7),
            "goes from 7 to 96 values, the model's from 48",
        ),
        ("layers.9.self_attn.q_proj.lora_A", (4, 48), "the model has 2 layers"),
        ("layers.0.mlp.q_proj.lora_A", (4, 48), "adapter on 'model.layers.0.mlp.q_proj' is not"),
        ("embed_tokens.lora_embedding_A", (4, 300), "embed_tokens.lora_embedding_A"),
        ("layers.0.self_attn.q_proj.lora_magnitude_vector", (96,), "lora_magnitude_vector"),
        ("layers.0.self_attn.q_proj.bias", (96,), "q_proj.bias"),
        ("layers.0.self_attn.k_proj.lora_A", (4, 48), "k_proj' has no lora_B"),
    ],
)
def test_tensors_that_are_refused(
    tiny_llama: Path, tmp_path: Path, module: str, shape: tuple[int, ...], sentence: str
) -> None:
    tensors = {f"{PREFIX}{module}.weight": torch.ones(shape)}
    if module.endswith("lora_A") and "k_proj" not in module:
        other = module.removesuffix("A") + "B"
        tensors[f"{PREFIX}{other}.weight"] = torch.ones(96, 4)
    save_adapter_files(tmp_path, tensors)
    rig = Rig(tiny_llama)
    rig.run(LoadAdapter("one", str(tmp_path)))
    assert sentence in errors_of(rig)[0]


def test_files_that_are_missing_or_cut(tiny_llama: Path, tmp_path: Path) -> None:
    path = save_adapter(tmp_path / "one", tiny_llama)
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    rig = Rig(tiny_llama)
    rig.run(LoadAdapter("a", str(path)), LoadAdapter("b", str(tmp_path)))
    assert "adapter_model.safetensors is cut: it has 31990 bytes" in errors_of(rig)[0]
    assert "no LoRA adapter at" in errors_of(rig)[1]
