"""Mixtures of experts, whose weights transformers joins: quantised one by one, or stacked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.gguf_files import matrices_as, stored_folder, write_gguf
from tests.worker.engine.formats.quantized_copies import change_config, save_dense, save_quantized
from tests.worker.engine.formats.stored_kinds import (
    e2m1_codes,
    e2m1_values,
    largest,
    pack_bytes,
    spread,
)
from tests.worker.engine.native.test_native import needs_bfloat16, weights_of
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.cpu.model_runner import TorchForward
from worker.engine.loading.memory_check import weight_bytes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.expert_modules import CodedExperts
from worker.engine.models.experts.expert_mlp import ExpertMlp
from worker.engine.models.registry import read_model_config
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.native.native_forward import NativeForward
from worker.engine.native.native_products import NativeLayer
from worker.engine_link.engine_messages import EngineReady

# Relative, of our C++ beside float32: activations in bfloat16 alone leave 0.01 to 0.05, and weights
# that are rounded to four bits 0.27.
MAX_ERROR = 0.06
BF16 = 0  # kBf16 of linear_weights.h
SHAPES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


@pytest.mark.parametrize("kind", ["packed int4", "fp8 in blocks", "gptq"])
def test_experts_that_are_quantised_one_by_one(kind: str, tmp_path: Path) -> None:
    assert_same_tokens(*save_one_by_one(tmp_path, kind))


def save_deepseek(folder: Path, kind: str) -> tuple[Path, Path]:
    """Quantised, and the same made dense."""
    sizes: dict[str, Any] = {
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 64,
        "q_lora_rank": 64,
        "kv_lora_rank": 96,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 48,
    }
    source = save_tiny_model(folder / "source", "deepseek_v3", **SHAPES, **sizes)
    quantized = save_quantized(source, folder / "quantized", kind)
    return quantized, save_dense(source, folder / "dense", kind)


def save_lfm2(folder: Path, kind: str) -> tuple[Path, Path]:
    """The same of a model that has names of its own for experts."""
    sizes: dict[str, Any] = {
        "layer_types": ["full_attention", "conv"],
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }
    source = save_tiny_model(folder / "source", "lfm2_moe", **SHAPES, **sizes)
    quantized = save_quantized(source, folder / "quantized", kind)
    return quantized, save_dense(source, folder / "dense", kind)


@pytest.mark.parametrize("kind", ["packed int4", "fp8 in blocks"])
def test_latents_and_experts_as_deepseek_and_kimi_store_them(kind: str, tmp_path: Path) -> None:
    assert_same_tokens(*save_deepseek(tmp_path, kind))


def save_one_by_one(folder: Path, kind: str, family: str = "qwen3_moe") -> tuple[Path, Path]:
    """Quantised, and the same made dense."""
    sizes: dict[str, Any] = {"num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
    source = save_tiny_model(
        folder / "source", family, **SHAPES, **sizes, moe_intermediate_size=64, pad_token_id=None
    )
    quantized = save_quantized(source, folder / "quantized", kind)
    return quantized, save_dense(source, folder / "dense", kind)


def save_untested(folder: Path, kind: str) -> tuple[Path, Path]:
    """Of a family that transformers computes."""
    return save_one_by_one(folder, kind, "mellum")


@needs_bfloat16
@pytest.mark.parametrize(
    ("save", "kind"),
    [
        pytest.param(save_deepseek, "packed int4", marks=pytest.mark.nightly),
        (save_deepseek, "fp8 in blocks"),
        (save_lfm2, "packed int4"),
        pytest.param(save_lfm2, "fp8 in blocks", marks=pytest.mark.nightly),
        pytest.param(save_one_by_one, "packed int4", marks=pytest.mark.nightly),
        pytest.param(save_one_by_one, "fp8 in blocks", marks=pytest.mark.nightly),
        (save_one_by_one, "gptq"),
    ],
)
def test_experts_of_the_fused_decoder_are_multiplied_as_they_are_stored(
    save: Callable[[Path, str], tuple[Path, Path]], kind: str, tmp_path: Path
) -> None:
    quantized, dense = save(tmp_path, kind)
    ours, theirs = Rig(quantized, dtype="bfloat16"), Rig(dense, dtype="float32")
    model = read_model_config(quantized)
    assert isinstance(model, DecoderConfig)
    num_layers = sum(each is not None for each in model.experts)
    assert (num_coded_layers(ours), num_coded_layers(theirs)) == (num_layers, 0)
    assert_near(ours, theirs)
    assert "multiplied as they are stored" in ready(ours).remark
    if model.beyond_native is None:
        return
    layer, *_ = layers_with_experts(ours)
    owner = layer._mlp._experts.owner
    counted = sum(num_values * bits / 8 for num_values, bits in model.coded_values)
    assert counted == pytest.approx(owner.num_bytes, rel=0.1)
    assert sum(each.num_values for each in model.coded_values) == owner.num_values


def assert_near(ours: Rig, theirs: Rig) -> None:
    """Behind most prompts; of some a near tie of the router falls otherwise, by dense weights and
    by torch's bfloat16 as well.
    """
    logits, reference = (prompt_logits(rig, num_prompts=31) for rig in (ours, theirs))
    errors = (logits - reference).norm(dim=1) / reference.norm(dim=1)
    assert errors.median() < MAX_ERROR


def num_coded_layers(rig: Rig) -> int:
    """With experts in codes: in our C++, or beside torch."""
    if not isinstance(rig.runner._forward._forward, NativeForward):
        layers = layers_with_experts(rig)
        assert layers
        return sum(isinstance(each._mlp._experts, NativeLayer) for each in layers)
    placed = weights_of(rig)
    linears = iter(placed.experts)
    layouts = [
        {linear.layout for linear in islice(linears, 2 * layer.experts.num_experts)}
        for layer in placed.layers
    ]
    assert any(layouts)
    return sum(bool(each - {BF16}) for each in layouts)


def layers_with_experts(rig: Rig) -> list[Any]:
    layers: list[Any] = list(rig.decoder._layers)
    return [each for each in layers if isinstance(each._mlp, ExpertMlp)]


def test_gpt_oss_as_openai_stores_it(tmp_path: Path) -> None:
    assert_same_tokens(*save_gpt_oss(tmp_path))


@needs_bfloat16
@pytest.mark.parametrize("kind", ["packed int4", "fp8 in blocks", "gptq"])
def test_experts_within_transformers_are_multiplied_as_they_are_stored(
    kind: str, tmp_path: Path
) -> None:
    assert_in_codes(*save_untested(tmp_path, kind))


@needs_bfloat16
def test_experts_of_gpt_oss_are_multiplied_as_they_are_stored(tmp_path: Path) -> None:
    quantized, dense = save_gpt_oss(tmp_path)
    ours, theirs = Rig(quantized, dtype="bfloat16"), Rig(dense, dtype="float32")
    assert (num_coded_layers(ours), num_coded_layers(theirs)) == (2, 0)
    assert_near(ours, theirs)


@needs_bfloat16
def test_experts_that_torch_is_asked_for_are_dense(tmp_path: Path) -> None:
    ours, theirs = save_gpt_oss(tmp_path / "ours")[0], save_untested(tmp_path, "gptq")[0]
    config: dict[str, Any] = {"dtype": "bfloat16", "cpu_kernels": "torch"}
    assert not num_coded_layers(Rig(ours, **config))
    assert not coded_experts(Rig(theirs, **config))


@needs_bfloat16
def test_what_is_counted_of_experts_is_what_they_take(tmp_path: Path) -> None:
    """But for norms and biases."""
    quantized, _ = save_untested(tmp_path, "packed int4")
    rig = Rig(quantized, dtype="bfloat16")
    counted = weight_bytes(read_model_config(quantized), torch.bfloat16, in_codes=True)
    rig.run()
    assert f"all weights take {counted / (1 << 30):.2f} GiB" in ready(rig).remark
    (experts, _) = coded_experts(rig)
    assert isinstance(experts._layer, NativeLayer)
    taken = model_of(rig).num_bytes + experts._layer.owner.num_bytes
    assert counted == pytest.approx(taken, rel=0.05)


def save_gpt_oss(folder: Path) -> tuple[Path, Path]:
    """Quantised, and the same made dense."""
    source = save_tiny_model(
        folder / "source",
        "gpt_oss",
        **SHAPES,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
    )
    dense, quantized = (
        Path(shutil.copytree(source, folder / name)) for name in ("dense", "quantized")
    )
    tensors = load_file(source / "model.safetensors")
    blocks, values = dict(tensors), dict(tensors)
    stacked = [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]
    assert len(stacked) == 4
    for name in stacked:
        rows = blocks.pop(name).transpose(1, 2).flatten(0, 1)
        codes, exponents, made = mxfp4(rows)
        shape = tensors[name].shape[0], tensors[name].shape[2]
        blocks[f"{name}_blocks"] = pack_bytes(codes).view(*shape, -1, 16)
        blocks[f"{name}_scales"] = exponents.view(*shape, -1)
        values[name] = made.view(*shape, -1).transpose(1, 2).contiguous()
    save_file(blocks, quantized / "model.safetensors", {"format": "pt"})
    save_file(values, dense / "model.safetensors", {"format": "pt"})
    change_config(
        quantized,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        },
    )
    return quantized, dense


def mxfp4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, exponents and what they stand for."""
    exponents = torch.floor(torch.log2(largest(rows, (1, 32)))) - 2
    each = spread(2.0**exponents, (1, 32), rows.shape)
    codes = e2m1_codes(rows / each)
    return codes, (exponents + 127).to(torch.uint8), e2m1_values(codes) * each


def assert_same_tokens(quantized: Path, dense: Path) -> None:
    adds = [make_add(idx, random_prompt(20, idx), max_tokens=24) for idx in range(2)]
    assert Rig(quantized, dtype="float32").run(*adds) == Rig(dense, dtype="float32").run(*adds)


def assert_in_codes(quantized: Path, dense: Path) -> None:
    """All experts, and the logits of a prompt are those of dense weights but for rounding."""
    ours, theirs = Rig(quantized, dtype="bfloat16"), Rig(dense, dtype="bfloat16")
    assert len(coded_experts(ours)) == 2
    assert not coded_experts(theirs)
    logits, reference = (prompt_logits(rig) for rig in (ours, theirs))
    assert (logits - reference).norm() < 0.03 * reference.norm()
    assert "multiplied as they are stored" in ready(ours).remark
    assert ready(ours).kernel_set == ""  # the rest is torch's: its bits are promised to nobody


def ready(rig: Rig) -> EngineReady:
    (event,) = (each for each in rig.channel.events if isinstance(each, EngineReady))
    return event


def prompt_logits(rig: Rig, num_prompts: int = 1) -> torch.Tensor:
    """Behind each."""
    seeds = range(num_prompts)
    rig.run(*(make_add(seed, random_prompt(40, seed), max_tokens=1) for seed in seeds))
    return torch.stack([rig.logits[seed, 40].float() for seed in seeds])


def coded_experts(rig: Rig) -> list[CodedExperts]:
    return [each for each in model_of(rig)._body.modules() if isinstance(each, CodedExperts)]


def model_of(rig: Rig) -> TransformersModel:
    forward = rig.runner._forward._forward
    assert isinstance(forward, TorchForward)
    assert isinstance(forward._model, TransformersModel)
    return forward._model


@needs_bfloat16
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen3_moe", "Q8_0"),
        ("gpt_oss", "Q4_0"),
        pytest.param("qwen3_moe", "Q4_0", marks=pytest.mark.nightly),
        pytest.param("gpt_oss", "Q8_0", marks=pytest.mark.nightly),
    ],
)
def test_experts_of_a_gguf_file_are_multiplied_as_they_are_stored(
    family: str, kind: str, tmp_path: Path
) -> None:
    """Beside the same file computed by torch, whose weights are made dense."""
    sizes: dict[str, Any] = SHAPES | {"intermediate_size": 64, "num_experts_per_tok": 2}
    if family == "qwen3_moe":
        sizes |= {"moe_intermediate_size": 64, "num_experts": 4}
    else:
        sizes |= {"num_local_experts": 4, "sliding_window": 16, "pad_token_id": None}
    source = save_tiny_model(tmp_path / "source", family, **sizes)
    file = tmp_path / "model.gguf"
    write_gguf(source, file, matrices_as(gguf.GGMLQuantizationType[kind]))
    folder = stored_folder(file)
    ours = Rig(folder, dtype="bfloat16", cpu_activations="bfloat16")
    theirs = Rig(folder, dtype="float32")
    assert (num_coded_layers(ours), num_coded_layers(theirs)) == (2, 0)
    assert_near(ours, theirs)
