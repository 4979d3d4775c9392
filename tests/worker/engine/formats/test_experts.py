"""Mixtures of experts, whose weights transformers joins: quantised one by one, or stacked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker.engine.formats.quantized_copies import (
    change_config,
    save_dense,
    save_quantized,
)
from tests.worker.engine.formats.stored_kinds import (
    e2m1_codes,
    e2m1_values,
    largest,
    pack_bytes,
    spread,
)
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add

SHAPES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


@pytest.mark.parametrize("kind", ["packed int4", "fp8 in blocks", "gptq"])
def test_experts_that_are_quantised_one_by_one(kind: str, tmp_path: Path) -> None:
    source = save_tiny_model(
        tmp_path / "source",
        "qwen3_moe",
        **SHAPES,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
    )
    quantized = save_quantized(source, tmp_path / "quantized", kind)
    dense = save_dense(source, tmp_path / "dense", kind)
    assert_same_tokens(quantized, dense)


def test_gpt_oss_as_openai_stores_it(tmp_path: Path) -> None:
    source = save_tiny_model(
        tmp_path / "source",
        "gpt_oss",
        **SHAPES,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
    )
    dense, quantized = (
        Path(shutil.copytree(source, tmp_path / name)) for name in ("dense", "quantized")
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
    assert_same_tokens(quantized, dense)


def mxfp4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, exponents and what they stand for."""
    exponents = torch.floor(torch.log2(largest(rows, (1, 32)))) - 2
    each = spread(2.0**exponents, (1, 32), rows.shape)
    codes = e2m1_codes(rows / each)
    return codes, (exponents + 127).to(torch.uint8), e2m1_values(codes) * each


def assert_same_tokens(quantized: Path, dense: Path) -> None:
    adds = [make_add(idx, random_prompt(20, idx), max_tokens=24) for idx in range(2)]
    assert Rig(quantized).run(*adds) == Rig(dense).run(*adds)
