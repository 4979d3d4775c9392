"""Our values beside those of the formats' own libraries, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shared.checkpoint.formats.layouts.four_bit_floats import ExpertMxfp4
from shared.checkpoint.formats.quantization_files import METHODS
from shared.checkpoint.formats.section import Section
from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.checkpoint.weights.safetensors_file import TensorHeader
from tests.worker.engine.formats.stored_kinds import KINDS, pack_bytes
from worker.engine.formats.weight_loading import load_weight
from worker.engine.formats.weight_parts import WeightParts

DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
}


class TensorsAtHand:
    """`TensorFiles` of tensors that are in memory."""

    place = "memory"
    is_renamed = False

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.headers = {
            name: TensorHeader(DTYPES[each.dtype], tuple(each.shape), each.nbytes, 0)
            for name, each in tensors.items()
        }

    def read_bytes(self, name: str) -> bytes:
        return self._tensors[name].contiguous().numpy().tobytes()

    def get(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def parts_of(stem: str, tensors: dict[str, torch.Tensor]) -> WeightParts:
    files = TensorsAtHand(tensors)
    return WeightParts(WeightHeads(stem, files), files)


@pytest.mark.parametrize(
    "kind", [name for name, each in KINDS.items() if "config_groups" in each.section]
)
def test_compressed_tensors(kind: str) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    section: dict[str, Any] = KINDS[kind].section
    weight = torch.randn(96, 160, generator=torch.Generator().manual_seed(1))
    tensors = KINDS[kind].store("m", weight).tensors
    scheme = QuantizationScheme.model_validate(section["config_groups"]["group_0"])
    local = {name.removeprefix("m."): each for name, each in tensors.items()}
    compressor = BaseCompressor.load_from_registry(section["format"])
    theirs = compressor.decompress(local, scheme)["weight"]
    quantization = METHODS["compressed-tensors"](Section("test", section))
    assert quantization is not None
    parts = parts_of("m.weight", tensors)
    stored = quantization.rules[0].format
    assert stored.check(parts.heads) == (96, 160)
    assert torch.equal(load_weight(stored, parts).dense(theirs.dtype), theirs)


def test_the_experts_of_gpt_oss() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 16, (3, 40, 4, 32), generator=generator)
    scales = torch.randint(100, 140, (3, 40, 4), generator=generator).to(torch.uint8)
    tensors = {"experts.gate_up_proj_blocks": pack_bytes(codes)}
    tensors["experts.gate_up_proj_scales"] = scales
    parts = parts_of("experts.gate_up_proj", tensors)
    assert ExpertMxfp4().check(parts.heads) == (3, 128, 40)
    weight = load_weight(ExpertMxfp4(), parts)
    assert weight.shape == (3, 128, 40)
    theirs = convert_moe_packed_tensors(tensors["experts.gate_up_proj_blocks"], scales)
    assert torch.equal(weight.dense(torch.bfloat16), theirs)
