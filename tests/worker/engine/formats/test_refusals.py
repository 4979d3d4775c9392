"""A checkpoint whose quantisation we do not know, or whose files do not fit it, is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shared.errors import ConfigError
from tests.worker.engine.formats.quantized_copies import (
    change_config,
    change_tensors,
    save_dense,
    save_quantized,
)
from tests.worker.engine.formats.stored_kinds import KINDS, compressed
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add

SHAPES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
Q_PROJ = "model__layers__0__self_attn__q_proj__"
NAN = float("nan")
AUTO_ROUND = KINDS["auto-round as gptq"].section


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("source") / "model", "llama", **SHAPES)


def assert_refused(path: Path, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Rig(path)


@pytest.mark.parametrize(
    ("kind", "tensors", "sentence"),
    [
        ("int8 by channel", {"weight_scale": None}, r"has no 'model\..*q_proj.weight_scale'"),
        (
            "int8 by channel",
            {"weight_scale": torch.full((64, 1), NAN, dtype=torch.bfloat16)},
            "that are no numbers",
        ),
        (
            "int8 by channel",
            {"weight_scale": torch.ones(63, 1)},
            r"of shape \(63, 1\), not \(64, 1\) or \(64,\)",
        ),
        ("int8 by channel", {"weight_scale": torch.ones(64, 1).int()}, "as I32, not BF16"),
        ("fp8 in blocks", {"weight_scale_inv": torch.ones(1, 1)}, r"\(1, 1\), not \(2, 2\)"),
        ("fp8 in blocks", {"weight_scale_inv": None}, "has no"),
        ("gptq", {"qzeros": None}, "has no 'model.layers.0.self_attn.q_proj.qzeros'"),
        ("gptq", {"g_idx": torch.full((64,), 9).int()}, "groups .* that it has no scales of"),
        ("awq", {"scales": torch.ones(2, 64)}, r"\(2, 64\), not \(4, 64\)"),
        ("packed int4", {"weight_shape": torch.tensor([64, 65])}, r"does not hold \(64, 65\)"),
        ("nf4", {"weight.absmax": None}, "has no"),
        ("nvfp4 of modelopt", {"weight_scale_2": torch.tensor(NAN)}, "that are no numbers"),
        ("mxfp4", {"weight_scale": torch.full((64, 2), 255).to(torch.uint8)}, "no numbers"),
    ],
)
def test_parts_that_do_not_fit(
    kind: str, tensors: dict[str, Any], sentence: str, source: Path, tmp_path: Path
) -> None:
    path = save_quantized(source, tmp_path / "model", kind)
    change_tensors(path, **{Q_PROJ + name: tensor for name, tensor in tensors.items()})
    assert_refused(path, sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"quant_method": "aqlm"}, "quantised by aqlm are not supported, only by auto-round"),
        ({"bits": 4}, "quantised by an unnamed method are not supported"),
        ({"quant_method": "gptq"}, "missing required field `bits`"),
        (AUTO_ROUND | {"packing_format": "auto_round"}, "packing_format='auto_round' is not supp"),
        (AUTO_ROUND | {"act_bits": 8}, "act_bits=8 is not supported"),
        (AUTO_ROUND | {"extra_config": {"lm_head": {"bits": 3}}}, "bits=3 is not supported"),
        (KINDS["gptq"].section | {"bits": 3}, "bits=3 is not supported"),
        (KINDS["gptq"].section | {"group_size": 0}, "group_size=0 is not supported"),
        (KINDS["gptq"].section | {"dynamic": {"+:x": {"bits": 3}}}, "bits=3 is not supported"),
        (KINDS["gptq"].section | {"dynamic": {"x": {"y": 1}}}, "dynamic: 'x' has 'y', which is n"),
        (KINDS["gptq"].section | {"rotation": "x"}, "unknown field `rotation`"),
        (KINDS["gptq"].section | {"checkpoint_format": "gptq_v9"}, "'gptq_v9' is not supported"),
        (KINDS["awq"].section | {"version": "gemv"}, "version='gemv' is not supported"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt='e5m2' is not supported"),
        (
            {"quant_method": "fp8", "weight_block_size": [0, 128]},
            r"weight_block_size=\(0, 128\) is not supported",
        ),
        (compressed("marlin-24", num_bits=4, type="int"), "stored as 'marlin-24', are not"),
        (compressed("pack-quantized", num_bits=9), "weights of type int in 9 bits"),
        (
            compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=0),
            "group_size=0 is not supported",
        ),
        (
            compressed("int-quantized", num_bits=8) | {"sparsity_config": {"format": "x"}},
            "sparsity_config is not supported",
        ),
        ({"quant_method": "modelopt", "quant_algo": "W9"}, "quant_algo='W9'"),
        ({"quant_method": "bitsandbytes"}, "one of load_in_4bit and load_in_8bit"),
    ],
)
def test_what_the_configuration_says(
    change: dict[str, Any], sentence: str, source: Path, tmp_path: Path
) -> None:
    path = save_quantized(source, tmp_path / "model", "int8 by channel")
    change_config(path, quantization_config=change)
    assert_refused(path, sentence)


def test_another_group_size_than_the_files(source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", "gptq")
    change_config(path, quantization_config=KINDS["gptq"].section | {"group_size": 32})
    assert_refused(path, r"of shape \(8, 64\), not \(4, 64\), which group_size=32 asks for")


@pytest.mark.parametrize("kind", ["int8 by channel", "fp8 by tensor", "gptq", "nf4", "mxfp4"])
def test_scales_are_never_ignored(kind: str, source: Path, tmp_path: Path) -> None:
    """Its files say nothing of the quantisation: before, its codes were taken for weights."""
    path = save_quantized(source, tmp_path / "model", kind)
    change_config(path, quantization_config=None, compression_config=None)
    assert_refused(path, r"stores '.*' as \w+, and its files name no quantisation")


def test_files_that_disagree(source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", "fp8 of modelopt")
    change_config(path, quantization_config=KINDS["gptq"].section)
    assert_refused(path, "say different things of its quantisation: gptq: int4 .*; modelopt: fp8")


def test_a_quantisation_of_nothing(source: Path, tmp_path: Path) -> None:
    path = save_dense(source, tmp_path / "model", "gptq")
    change_config(path, quantization_config=KINDS["gptq"].section)
    assert_refused(path, "and none of its tensors is")


def test_a_module_that_is_to_be_left_alone(source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", "int8 by channel")
    section = KINDS["int8 by channel"].section | {"ignore": ["re:.*q_proj"]}
    change_config(path, quantization_config=section)
    assert_refused(path, "'model.layers.0.self_attn.q_proj' is quantised, and compressed-tensors")


def test_mlx_is_refused_with_the_way_out(source: Path, tmp_path: Path) -> None:
    path = save_dense(source, tmp_path / "model", "gptq")
    change_config(path, quantization={"group_size": 64, "bits": 4})
    assert_refused(path, "as MLX stores them are not supported; take the original")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: change_tensors(path, **{f"{Q_PROJ}bias": torch.ones(64)}),
        lambda path: change_tensors(path, **{f"{Q_PROJ}lora": torch.zeros(64)}),
    ],
)
def test_weights_that_nobody_reads(
    spoil: Callable[[Path], None], source: Path, tmp_path: Path
) -> None:
    path = save_dense(source, tmp_path / "model", "gptq")
    spoil(path)
    assert_refused(path, r"has no place for: 'model.layers.0.self_attn.q_proj.\w+'$")


def test_weights_that_nobody_needs(source: Path, tmp_path: Path) -> None:
    """A bias of zeros, inverse frequencies, scales of activations and of keys."""
    path = save_quantized(source, tmp_path / "model", "gptq")
    before = Rig(path).run(make_add(1, random_prompt(9, 1), max_tokens=8))
    change_tensors(
        path,
        **{
            f"{Q_PROJ}bias": torch.zeros(64),
            "model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8),
            "model__layers__0__self_attn__k_scale": torch.ones(()),
            f"{Q_PROJ}input_scale": torch.ones(()),
        },
    )
    assert Rig(path).run(make_add(1, random_prompt(9, 1), max_tokens=8)) == before


def test_a_transformers_model_is_held_to_the_same(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path / "source", "granite", **SHAPES)
    path = save_quantized(source, tmp_path / "model", "int8 by channel")
    change_config(path, quantization_config=None)
    assert_refused(path, "its files name no quantisation")
    path = save_dense(source, tmp_path / "dense", "int8 by channel")
    change_tensors(path, **{f"{Q_PROJ}bias": torch.ones(64)})
    assert_refused(path, r"has no place for: 'model.layers.0.self_attn.q_proj.bias'$")


def test_a_mixed_checkpoint(source: Path, tmp_path: Path) -> None:
    """Attention in eight bits, the MLP in four, the rest as it was."""
    four = save_quantized(source, tmp_path / "four", "packed int4")
    eight = save_quantized(source, tmp_path / "eight", "packed int8")
    dense = save_dense(source, tmp_path / "dense", "packed int4")
    dense_eight = load_file(
        save_dense(source, tmp_path / "d8", "packed int8") / "model.safetensors"
    )
    change_tensors(
        dense, **{_key(name): each for name, each in dense_eight.items() if "self_attn" in name}
    )
    eight_tensors = load_file(eight / "model.safetensors")
    change_tensors(
        four, **{_key(name): each for name, each in eight_tensors.items() if "self_attn" in name}
    )
    groups = {
        "attention": KINDS["packed int8"].section["config_groups"]["group_0"]
        | {"targets": ["re:.*self_attn.*"]},
        "rest": KINDS["packed int4"].section["config_groups"]["group_0"],
    }
    section = KINDS["packed int4"].section | {"config_groups": groups}
    change_config(four, quantization_config=section)
    add = make_add(1, random_prompt(20, 1), max_tokens=24)
    assert Rig(four).run(add) == Rig(dense).run(add)


def _key(name: str) -> str:
    return name.replace(".", "__")


def test_hf_quant_config_without_weights_is_no_quantisation(source: Path, tmp_path: Path) -> None:
    path = save_dense(source, tmp_path / "model", "gptq")
    quantization = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    assert Rig(path).run(make_add(1, random_prompt(9, 1), max_tokens=4))
