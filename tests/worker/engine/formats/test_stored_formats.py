"""What a quantised weight stands for: from files in the published layouts, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.engine.formats.quantized_copies import save_dense, save_quantized
from tests.worker.engine.formats.stored_kinds import KINDS
from tests.worker.engine.native.test_native import MAX_ERROR, native_rig, needs_bfloat16
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.formats.stored_checkpoint import open_checkpoint
from worker.engine.native.coded_layout import coded_layout

SHAPES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("source") / "model", "llama", **SHAPES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_every_format(kind: str, source: Path, tmp_path: Path) -> None:
    quantized = save_quantized(source, tmp_path / "quantized", kind)
    dense = load_file(save_dense(source, tmp_path / "dense", kind) / "model.safetensors")
    original = load_file(source / "model.safetensors")
    with open_checkpoint(quantized) as checkpoint:
        assert len(checkpoint.heads.quantized) == 14
        for name, values in dense.items():
            for dtype in (torch.float32, torch.bfloat16):
                assert torch.equal(checkpoint.read(name, dtype).to(dtype), values.to(dtype)), name
            error = (values - original[name]).norm() / original[name].norm()
            assert error <= KINDS[kind].largest_error


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_the_dense_weights(
    kind: str, source: Path, tmp_path: Path
) -> None:
    """In one dtype for each: values are the same in both, says the test above."""
    quantized = save_quantized(source, tmp_path / "quantized", kind)
    dense = save_dense(source, tmp_path / "dense", kind)
    adds = [make_add(idx, random_prompt(20, idx), max_tokens=8) for idx in range(2)]
    dtype = ("float32", "bfloat16")[list(KINDS).index(kind) % 2]
    ours, theirs = (Rig(path, dtype=dtype, cpu_kernels="torch") for path in (quantized, dense))
    assert ours.run(*adds) == theirs.run(*adds)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_multiplied_as_it_is_stored(kind: str, source: Path, tmp_path: Path) -> None:
    quantized = save_quantized(source, tmp_path / "quantized", kind)
    with open_checkpoint(quantized) as checkpoint:
        layouts = [
            coded_layout(codes)
            for name in checkpoint.heads.quantized
            if (codes := checkpoint.codes(name)) is not None
        ]
    assert len(layouts) == 14
    assert None not in layouts


@needs_bfloat16
@pytest.mark.parametrize("kind", KINDS)
def test_our_own_products_are_those_of_the_dense_weights(
    kind: str, source: Path, tmp_path: Path
) -> None:
    """Nearly: where they multiply codes, they do not round weights to bfloat16 first."""
    quantized = save_quantized(source, tmp_path / "quantized", kind)
    dense = save_dense(source, tmp_path / "dense", kind)
    rig = native_rig(quantized, max_step_tokens=33)
    prompts = [random_prompt(length, length) for length in (20, 70)]
    outputs = rig.run(
        *(
            make_add(idx, prompt, max_tokens=24, ignore_eos=True)
            for idx, prompt in enumerate(prompts)
        )
    )
    for idx, prompt in enumerate(prompts):
        assert_like_reference(dense, rig, idx, prompt + outputs[idx], MAX_ERROR)
