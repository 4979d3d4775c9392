"""Codes that are made of experts alone when a mixture in 16 bits is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.checkpoint.stored_format import MadeFormat
from shared.errors import ConfigError
from tests.gguf_files import matrices_as, stored_folder, write_gguf
from tests.worker.engine.formats.test_experts import (
    SHAPES,
    assert_near,
    coded_experts,
    num_coded_layers,
    ready,
    save_deepseek,
    save_lfm2,
    save_one_by_one,
    save_untested,
)
from tests.worker.engine.native.test_native import needs_bfloat16
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.formats.made_codes import is_of_experts, make_codes
from worker.engine.loading import model_limits
from worker.engine.loading.memory_check import weight_bytes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import EngineConfig

KINDS: tuple[MadeFormat, ...] = get_args(MadeFormat)
QWEN: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}


def save_made(source: Path, target: Path, kind: MadeFormat) -> Path:
    """What the codes of its experts stand for, in float32."""
    shutil.copytree(source, target)
    tensors = {name: each.float() for name, each in load_file(source / "model.safetensors").items()}
    names = [name for name in tensors if is_of_experts(name)]
    assert names
    is_turned = json.loads((source / "config.json").read_text())["model_type"] == "gpt_oss"
    for name in names:
        weight = tensors[name].mT if is_turned else tensors[name]
        values = make_codes(kind, weight).dense(torch.float32)
        tensors[name] = (values.mT if is_turned else values).contiguous()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def save_granite(folder: Path, _kind: str) -> None:
    """The experts of a layer lie in one tensor."""
    sizes: dict[str, Any] = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "layer_types": ["full_attention", "linear_attention"],
        "mamba_n_heads": 8,
        "mamba_d_state": 16,
    }
    save_tiny_model(folder / "source", "granitemoehybrid", **SHAPES, **sizes)


def save_turned(folder: Path, _kind: str) -> None:
    """They lie in two tensors, their columns as rows."""
    sizes: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}
    save_tiny_model(folder / "source", "gpt_oss", **SHAPES, **sizes)


@needs_bfloat16
@pytest.mark.parametrize(
    ("save", "kind"),
    [
        pytest.param(save_deepseek, "int8", marks=pytest.mark.nightly),
        (save_deepseek, "int4"),
        (save_granite, "int4"),
        (save_lfm2, "fp8"),
        pytest.param(save_lfm2, "int4", marks=pytest.mark.nightly),
        (save_one_by_one, "int8"),
        (save_turned, "fp8"),
        pytest.param(save_turned, "int4", marks=pytest.mark.nightly),
    ],
)
def test_experts_of_the_fused_decoder(save: Any, kind: MadeFormat, tmp_path: Path) -> None:
    save(tmp_path, "packed int8")
    source = tmp_path / "source"
    ours = Rig(source, dtype="bfloat16", quantization=kind)
    theirs = Rig(save_made(source, tmp_path / "made", kind), dtype="float32")
    assert num_coded_layers(ours) > 0
    assert num_coded_layers(theirs) == 0
    assert_near(ours, theirs)
    assert "experts are int" in ready(ours).remark or "experts are fp8" in ready(ours).remark
    assert "made when loaded and multiplied as such" in ready(ours).remark
    model = read_model_config(source, kind)
    counted = weight_bytes(model, torch.bfloat16, in_codes=True)
    saved = weight_bytes(model, torch.bfloat16) - counted
    ((num_values, bits),) = model.coded_values
    assert num_values == model.num_expert_values
    assert saved == pytest.approx(num_values * (2 - bits / 8), abs=1)


@pytest.mark.parametrize("save", [save_deepseek, save_turned])
def test_torch_computes_the_same_values(save: Any, tmp_path: Path) -> None:
    save(tmp_path, "packed int8")
    source = tmp_path / "source"
    dense = save_made(source, tmp_path / "made", "int4")
    add = make_add(0, random_prompt(20, 1), max_tokens=24)
    made = Rig(source, dtype="float32", quantization="int4").run(add)
    assert made == Rig(dense, dtype="float32").run(add)


@needs_bfloat16
@pytest.mark.parametrize("kind", KINDS)
def test_experts_of_a_model_of_transformers(kind: MadeFormat, tmp_path: Path) -> None:
    save_untested(tmp_path, "packed int8")
    source = tmp_path / "source"
    ours = Rig(source, dtype="bfloat16", quantization=kind)
    theirs = Rig(save_made(source, tmp_path / "made", kind), dtype="bfloat16")
    assert (len(coded_experts(ours)), len(coded_experts(theirs))) == (2, 0)
    assert_near(ours, theirs)
    assert "made when loaded and multiplied as such" in ready(ours).remark


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dtype": "float32"}, "dtype is float32"),
        ({"dtype": "bfloat16", "cpu_kernels": "torch"}, "cpu_kernels is torch"),
        ({"dtype": "bfloat16", "load_format": "dummy"}, "load_format is dummy"),
    ],
)
def test_what_our_cpp_does_not_multiply_is_refused(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save_untested(tmp_path, "packed int8")
    source = tmp_path / "source"
    sentence = f"quantization=int8 is not possible with MellumForCausalLM: .*{reason}"
    with pytest.raises(ConfigError, match=sentence):
        Rig(source, quantization="int8", **config)
    with pytest.raises(ConfigError, match="on a GPU they are computed in 16 bits"):
        model_limits.check_on_gpu(EngineConfig(), read_model_config(source, "int8", on_gpu=True))


def test_experts_of_a_gguf_file(tmp_path: Path) -> None:
    """Codes are made of those of the fused decoder; on a GPU it makes them dense again."""
    source = save_tiny_model(tmp_path / "source", "qwen3_moe", **SHAPES, **QWEN)
    choose = matrices_as(gguf.GGMLQuantizationType.BF16)
    folder = stored_folder(write_gguf(source, tmp_path / "model.gguf", choose))
    on_gpu = read_model_config(folder, "int8", on_gpu=True)
    assert isinstance(on_gpu, DecoderConfig)
    assert on_gpu.made_format == "int8"
    ours = Rig(folder, dtype="bfloat16", quantization="int8")
    theirs = Rig(folder, dtype="float32", quantization="int8")
    assert (num_coded_layers(ours), num_coded_layers(theirs)) == (2, 0)
    assert_near(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_in_one_tensor_get_codes_of_their_own(kind: MadeFormat) -> None:
    experts = torch.randn(3, 48, 160, generator=torch.Generator().manual_seed(1))
    codes = make_codes(kind, experts)
    for idx, each in enumerate(experts):
        assert torch.equal(
            codes.matrix(idx).dense(torch.float32), make_codes(kind, each).dense(torch.float32)
        )
    assert codes.dense(torch.float32).shape == experts.shape


def test_the_card_says_that_it_is_the_experts(tmp_path: Path) -> None:
    for model_type, overrides, told in (
        ("llama", {}, "int8 by channel, made when loaded"),
        ("qwen3_moe", SHAPES | QWEN, "experts int8 by channel, made when loaded"),
    ):
        path = save_tiny_model(tmp_path / model_type, model_type, **overrides)
        assert json.loads((path / "config.json").read_text())
        files = ModelFiles.read(path, options=ModelOptions(quantization="int8"))
        assert files._format == told
