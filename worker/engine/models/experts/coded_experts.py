"""Experts that are multiplied as they are stored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import (
    ExpertLayer,
    ExpertProducts,
    ExpertWeights,
    SiluGate,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import GATE_UP_PARTS
from worker.engine.models.loader import CodeReader
from worker.engine.models.stored_experts import Weight, joined


class CodedExperts:
    """Reads the experts of a fused decoder's layers, and gives them to who multiplies codes."""

    def __init__(self, products: ExpertProducts, reader: CodeReader) -> None:
        self._products = products
        self._reader = reader

    def make(self, config: ExpertsConfig, prefix: str) -> ExpertLayer:
        """`prefix` of the names of the MLP's tensors. Raises ConfigError."""
        return self._products.make(self._read(config, prefix), SiluGate())

    def _read(self, config: ExpertsConfig, prefix: str) -> Iterator[ExpertWeights]:
        up_shape = config.intermediate_size, config.hidden_size
        for idx in range(config.num_experts):
            expert = f"{prefix}experts.{idx}."
            parts = [self._weight(f"{expert}{name}.weight", *up_shape) for name in GATE_UP_PARTS]
            down = self._weight(f"{expert}down_proj.weight", *reversed(up_shape))
            yield ExpertWeights(joined(*parts), Projection(down, None))

    def _weight(self, name: str, *shape: int) -> Weight:
        codes = self._reader.read_codes(name, *shape)
        return self._reader.read_as(torch.bfloat16, name, *shape) if codes is None else codes
