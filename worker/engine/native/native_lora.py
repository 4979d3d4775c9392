"""LoRA adapters as the C++ decoder adds them."""

from __future__ import annotations

import ctypes

import torch
from torch.nn.functional import pad

from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.lora.lora_projection import LoraPair, LoraSlice, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_lora import DOWN, GATE_UP, OUTPUT, QKV, decoder_slices

LANES = 16  # kLanes of vector_math.h
MAX_PARTS = 4  # kMaxLoraParts of lora.h
PROJECTIONS = (QKV, OUTPUT, GATE_UP, DOWN)  # in the order of ProjectionId of decoder.cpp


class PartStruct(ctypes.Structure):
    """`LoraPart` of lora.h."""

    _fields_ = (
        ("start", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("down", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
    )


class ProjectionStruct(ctypes.Structure):
    """`LoraProjection` of lora.h."""

    _fields_ = (("num_parts", ctypes.c_int64), ("parts", PartStruct * MAX_PARTS))


class GroupStruct(ctypes.Structure):
    """`LoraGroup` of lora.h."""

    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("projections", ctypes.c_void_p),
    )


class StepStruct(ctypes.Structure):
    """`LoraStep` of lora.h."""

    _fields_ = (("num_groups", ctypes.c_int64), ("groups", ctypes.POINTER(GroupStruct)))


class PackedLora:
    """All matrices of an adapter, packed; they live as long as this object."""

    def __init__(self, config: DecoderConfig, weights: LoraWeights) -> None:
        """Raises ConfigError for what does not fit the decoder."""
        self._tensors: list[torch.Tensor] = []  # kept alive
        self._structs = (ProjectionStruct * (config.num_layers * len(PROJECTIONS)))()
        for (layer_id, name), slices in decoder_slices(config, weights).items():
            place = layer_id * len(PROJECTIONS) + PROJECTIONS.index(name)
            is_gated = name == GATE_UP and len(slices) > 1
            parts = self._parts(slices, is_interleaved=is_gated)
            self._structs[place].num_parts = len(parts)
            self._structs[place].parts[: len(parts)] = parts

    @property
    def address(self) -> int:
        return ctypes.addressof(self._structs)

    def _parts(self, slices: list[LoraSlice], *, is_interleaved: bool) -> list[PartStruct]:
        """`is_interleaved`: sixteen gates, then the sixteen values that go with them."""
        parts = []
        for idx, (start, end, pair) in enumerate(slices):
            if pair is None:
                continue
            parts.append(
                PartStruct(
                    start=idx * LANES if is_interleaved else start,
                    block_stride=len(slices) * LANES if is_interleaved else LANES,
                    out_features=end - start,
                    rank=_rank(pair),
                    down=self._packed(pair.down),
                    up=self._packed(pair.up),
                )
            )
        return parts

    def _packed(self, matrix: torch.Tensor) -> int:
        """[rows, columns] as [ceil(rows / LANES), ceil(columns / 2), LANES, 2]; where it lies."""
        num_rows, num_columns = matrix.shape
        padded = pad(matrix.bfloat16(), (0, num_columns % 2, 0, -num_rows % LANES))
        packed = padded.view(-1, LANES, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()
        self._tensors.append(packed)
        return packed.data_ptr()


class LoraStep:
    """Whose adapters a step adds to which tokens; keeps them alive until it is done."""

    def __init__(self, loras: LoraBatch) -> None:
        self._loras = loras
        groups = (GroupStruct * len(loras.groups))()
        for struct, group in zip(groups, loras.groups, strict=True):
            projections = group.adapter.projections
            assert isinstance(projections, PackedLora), "it was loaded for this decoder"
            struct.num_tokens = len(group.rows)
            struct.tokens = group.rows.data_ptr()
            struct.projections = projections.address
        self._struct = StepStruct(len(loras.groups), groups)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._struct)


def _rank(pair: LoraPair) -> int:
    return len(pair.down)
