"""What is refused, told or works with a model whose layers keep a latent of each token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError
from shared.protocol.sampling import BeamParams
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.families import LATENT, LONGROPE
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.loading import memory_check
from worker.engine.loading.memory_check import check_memory
from worker.engine.loading.model_report import report_on, report_on_gpu
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AdapterLoaded, LoadAdapter

TOKEN_BYTES = 3 * (20 + 8) * 4  # three layers, a latent and a rotated key, in float32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, overrides = LATENT["deepseek_v3"]
    return save_tiny_model(tmp_path_factory.mktemp("deepseek"), model_type, **overrides)


def test_guesses_leave_every_token_as_it_is(path: Path) -> None:
    few = (5, 6, 7)  # so that what comes has come before
    add = make_add(1, [5, 6, 7, 7] * 9, max_tokens=60, ignore_eos=True, allowed_token_ids=few)
    plain, guessing = Rig(path), Rig(path, speculate="ngram")
    assert plain.run(add) == guessing.run(add)
    assert guessing.channel.steps[-1].load.num_drafted > 0
    assert len(guessing.channel.steps) < len(plain.channel.steps)


def test_beams_share_their_pages(path: Path) -> None:
    rig = Rig(path)
    add = make_add(1, random_prompt(30, 1), beam=BeamParams(2, 2), max_tokens=8, ignore_eos=True)
    rig.run(add)
    assert rig.channel.finishes()[1].message is None


def test_gpus_and_ranks_do_not_choose_positions(tmp_path: Path) -> None:
    model_type, overrides = LATENT["deepseek_v32"]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    architecture = "DeepseekV32ForCausalLM"
    sentence = f"{architecture} is not possible on a GPU: .* positions .*; device=cpu serves it"
    with pytest.raises(ConfigError, match=sentence):
        GpuRig(path, LateDevice())
    report = report_on_gpu(EngineConfig(), read_model_config(path), torch.float32, LateDevice())
    assert "device=cpu serves it" in report.refusal
    sentence = f"tp=2 is not possible with {architecture}: its choice of positions"
    with pytest.raises(ConfigError, match=sentence):
        GpuRig(path, None, tp=2, device="cpu")


def test_our_code_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cpu_kernels=native is not possible: .* torch alone"):
        Rig(path, cpu_kernels="native")
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 is not possible: .* torch alone"):
        Rig(path, kv_dtype="int8")


def test_an_adapter_is_refused(path: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path, path, modules=("o_proj",))
    rig = Rig(path)
    rig.run(LoadAdapter("one", str(adapter)))
    (loaded,) = (event for event in rig.channel.events if isinstance(event, AdapterLoaded))
    assert "with DeepseekV3ForCausalLM: its keys and values are made of a latent" in loaded.error


def test_a_token_takes_one_latent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model_config(path)
    assert model.kv_bytes_per_token(torch.float32) == TOKEN_BYTES
    assert f"a token of the cache {TOKEN_BYTES / 1024:.1f} KiB" in report_on(path).need
    pool = Rig(path).runner._runner._kv_cache_pool
    assert (
        sum(each.nbytes for each in pool._data)
        == (pool.num_pages + 1) * pool.page_size * TOKEN_BYTES
    )
    config = EngineConfig(model_path=str(path), num_kv_tokens=1 << 20)
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: TOKEN_BYTES << 20)
    with pytest.raises(ConfigError, match=r"keys and values 0\.33 GiB \(1048576 tokens\)"):
        check_memory(config, model, torch.float32, 2048)
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: (TOKEN_BYTES + 1) << 20)
    check_memory(config, model, torch.float32, 2048)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads=2 is not supported"),
        ({"kv_lora_rank": 0}, "'kv_lora_rank' must be a positive integer, not 0"),
        ({"v_head_dim": "10"}, "10"),
        ({"qk_rope_head_dim": 7, "head_dim": 7}, "an even rotary dimension"),
        ({"rope_parameters": {"rope_type": "axial"}}, "'axial'"),
        (
            {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64}},
            "'short_factor' has 8 numbers for 4 pairs",
        ),
        ({"hidden_act": "sinus"}, "hidden_act='sinus' is not supported"),
        ({"n_group": 5}, "12 experts do not make 5 equal groups"),
        ({"topk_group": 4}, "4 groups cannot be chosen of 3"),
        ({"num_experts_per_tok": 13}, "13 experts cannot be chosen of 12"),
        ({"num_experts_per_tok": 5, "topk_group": 1}, "1 groups of 4 have no 5 experts"),
        ({"n_group": 12, "topk_group": 4}, "groups of 1 experts have no 2 to be scored by"),
        ({"topk_method": "greedy"}, "topk_method='greedy' is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported"),
        ({"routed_scaling_factor": 0.0}, "'routed_scaling_factor' must be a positive number"),
    ],
)
def test_a_configuration_that_makes_no_sense(
    path: Path, tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    told = json.loads((path / "config.json").read_text()) | values
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"topk_method": "best"}, "topk_method='best' is not supported: greedy and group"),
        ({"norm_topk_prob": True}, "norm_topk_prob=True is not supported"),
        ({"scoring_func": "sigmoid"}, "scoring_func='sigmoid' is not supported"),
    ],
)
def test_what_version_2_does_not_have(
    tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    model_type, overrides = LATENT["deepseek_v2"]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(path)


@pytest.mark.parametrize("types", [["dense"], ["dense", "wide"], "dense"])
def test_layers_of_other_kinds_are_refused(tmp_path: Path, types: object) -> None:
    model_type, overrides = LATENT["glm4_moe_lite"]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mlp_layer_types": types}))
    with pytest.raises(ConfigError, match="mlp_layer_types"):
        read_model_config(path)


def test_layers_that_guess_are_not_read_and_others_behind_the_last_are_refused(
    path: Path, tmp_path: Path
) -> None:
    """DeepSeek's files hold one: `num_nextn_predict_layers`."""
    copy = shutil.copytree(path, tmp_path / "copy")
    (file,) = copy.glob("*.safetensors")
    weights = load_file(file)
    save_file(weights | {"model.layers.3.eh_proj.weight": torch.ones(2, 2)}, file)
    add = make_add(1, random_prompt(9, seed=2), max_tokens=5, ignore_eos=True)
    assert Rig(copy).run(add) == Rig(path).run(add)
    save_file(weights | {"model.layers.4.eh_proj.weight": torch.ones(2, 2)}, file)
    with pytest.raises(ConfigError, match=r"model\.layers\.4\.eh_proj\.weight"):
        Rig(copy)


def test_all_experts_count_as_memory(path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = read_model_config(path)
    theirs = AutoModelForCausalLM.from_pretrained(path)
    matrices = sum(each.numel() for each in theirs.parameters() if each.ndim > 1)
    assert model.num_parameters == matrices


def test_kimi_k2_is_known_by_its_own_name(path: Path, tmp_path: Path) -> None:
    """Its config.json is of the form that transformers 4 wrote."""
    copy = shutil.copytree(path, tmp_path / "copy")
    file = copy / "config.json"
    told = json.loads(file.read_text())
    rope = told.pop("rope_parameters")
    told |= {
        "model_type": "kimi_k2",
        "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": rope | {"type": rope.pop("rope_type")},
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    }
    file.write_text(json.dumps(told))
    add = make_add(1, random_prompt(40, seed=7), max_tokens=9, ignore_eos=True)
    kimi, deepseek = Rig(copy), Rig(path)
    assert kimi.run(add) == deepseek.run(add)
    assert all(torch.equal(kimi.logits[key], deepseek.logits[key]) for key in kimi.logits)
