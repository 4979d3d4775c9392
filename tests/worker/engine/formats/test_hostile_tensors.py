"""Whatever shapes and numbers stand beside a quantised weight: it is read, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shared.checkpoint.formats.layouts.four_bit_floats import ExpertMxfp4
from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.quantization_files import METHODS
from shared.checkpoint.formats.section import Section
from shared.errors import ConfigError
from tests.worker.engine.formats.stored_kinds import KINDS, Kind
from tests.worker.engine.formats.test_formats_libraries import TensorsAtHand
from worker.engine.formats.stored_checkpoint import StoredCheckpoint

MODULE = "model.layers.0.mlp.up_proj"
STATE = f"{MODULE}.weight.quant_state.bitsandbytes__nf4"
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (0, 0),
    (0, 32),
    (32, 0),
    (1, 1),
    (3, 5),
    (0, 2, 2),
    (1, 1, 1),
    (2,) * 4,
]


def quantization_of(kind: Kind) -> Quantization:
    method = kind.section.get("quant_method", "modelopt")
    quantization = METHODS[method](Section("config.json", kind.section))
    assert quantization is not None
    return quantization


def is_taken(tensors: dict[str, torch.Tensor], quantization: Quantization) -> bool:
    """Whether the weight was read. Anything but ConfigError ends the test."""
    try:
        checkpoint = StoredCheckpoint.of(TensorsAtHand(tensors), quantization)
        for name in checkpoint.heads.quantized:
            weight = checkpoint.read(name, torch.float32)
            assert weight.shape == checkpoint.heads.shape(name)
            assert bool(torch.isfinite(weight).all())
    except ConfigError:
        return False
    return True


def changes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Other shapes, and other numbers."""
    for shape in [*SHAPES, (*tensor.shape, 1), (1, *tensor.shape), tuple(tensor.shape)[::-1]]:
        yield torch.ones(shape, dtype=torch.float32).to(tensor.dtype)
    is_float = tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1
    for value in (float("nan"), float("inf"), -1.0) if is_float else (0, -1, 1 << 20):
        yield torch.full(tensor.shape, value, dtype=torch.float64).to(tensor.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_another_shape_or_with_other_numbers(kind: str) -> None:
    quantization = quantization_of(KINDS[kind])
    weight = torch.randn(96, 160, generator=torch.Generator().manual_seed(1))
    stored = KINDS[kind].store(MODULE, weight).tensors
    assert is_taken(stored, quantization), "as it is"
    for name, tensor in stored.items():
        is_taken({each: part for each, part in stored.items() if each != name}, quantization)
        for changed in changes(tensor):
            is_taken(stored | {name: changed}, quantization)
    for shape in SHAPES:
        empty = {name: torch.ones(shape).to(tensor.dtype) for name, tensor in stored.items()}
        is_taken(empty, quantization)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [0, 160]},
        {"shape": [96, 0]},
        {"shape": [-96, -160]},
        {"shape": [1 << 40, 1 << 40]},
        {"shape": [15360]},
        {"blocksize": 0},
        {"blocksize": -64},
        {"blocksize": 1 << 70},
        {"nested_blocksize": -1},
        {"nested_blocksize": 1},
        {"nested_offset": "much"},
        {"quant_type": "fp4"},
        {"more": [[[[]]]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["nf4", "nf4 with double quantisation"])
def test_a_state_of_bitsandbytes_that_cannot_be(kind: str, change: dict[str, Any]) -> None:
    weight = torch.randn(96, 160, generator=torch.Generator().manual_seed(1))
    stored = KINDS[kind].store(MODULE, weight).tensors
    state = json.loads(bytes(stored[STATE].tolist())) | change
    written = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    assert not is_taken(stored | {STATE: written}, quantization_of(KINDS[kind]))


def test_an_offset_that_is_no_float32() -> None:
    stored = KINDS["nf4 with double quantisation"].store(MODULE, torch.randn(96, 160)).tensors
    state = json.loads(bytes(stored[STATE].tolist())) | {"nested_offset": 1e39}
    written = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    assert not is_taken(stored | {STATE: written}, quantization_of(KINDS["nf4"]))


def test_a_state_of_bitsandbytes_is_not_read_however_long() -> None:
    stored = KINDS["nf4"].store(MODULE, torch.randn(96, 160)).tensors
    spaces = torch.full((1 << 20,), 32, dtype=torch.uint8)
    padded = torch.cat((stored[STATE], spaces))
    assert not is_taken(stored | {STATE: padded}, quantization_of(KINDS["nf4"]))


def test_experts_of_gpt_oss_of_another_shape() -> None:
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    method = METHODS["mxfp4"](Section("config.json", {"quant_method": "mxfp4"}))
    assert method is not None
    assert isinstance(method.rules[0].format, ExpertMxfp4)
    blocks = torch.ones(3, 40, 4, 16, dtype=torch.uint8)
    scales = torch.full((3, 40, 4), 127, dtype=torch.uint8)
    whole = {f"{stem}_blocks": blocks, f"{stem}_scales": scales}
    assert is_taken(whole, method)
    for name, tensor in whole.items():
        for changed in changes(tensor):
            is_taken(whole | {name: changed}, method)


@pytest.mark.parametrize("word", ["targets", "ignore"])
@pytest.mark.parametrize("pattern", ["re:(", "re:[", "re:*", "re:(?P<a>x)(?P<a>y)"])
def test_a_pattern_that_is_none(word: str, pattern: str) -> None:
    section: dict[str, Any] = json.loads(json.dumps(KINDS["packed int4"].section))
    if word == "ignore":
        section["ignore"] = [pattern]
    else:
        section["config_groups"]["group_0"]["targets"] = [pattern]
    with pytest.raises(ConfigError, match=r"^config\.json: .*pattern"):
        METHODS["compressed-tensors"](Section("config.json", section))
