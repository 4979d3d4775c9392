"""Experts that are multiplied as they are stored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import (
    ExpertLayer,
    ExpertProducts,
    ExpertWeights,
    SiluGate,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.experts.stored_layers import read_experts
from worker.engine.models.loader import CodeReader
from worker.engine.models.stored_experts import Weight, joined


class CodedExperts:
    """Reads the experts of a fused decoder's layers, and gives them to who multiplies codes."""

    def __init__(self, products: ExpertProducts, reader: CodeReader) -> None:
        self._products = products
        self._reader = reader

    def make(self, config: ExpertsConfig, prefix: str) -> ExpertLayer:
        """Of those that are gated by SiLU; `prefix` of the names of the MLP's tensors.

        Raises ConfigError.
        """
        return self._products.make(self._read(config, prefix), SiluGate())

    def _read(self, config: ExpertsConfig, prefix: str) -> Iterator[ExpertWeights]:
        pick = _transposed if config.is_stored_transposed else _one_of
        for ups, down in read_experts(config, self._reader, prefix, self._weight, pick):
            yield ExpertWeights(joined(*ups), Projection(down, None))

    def _weight(self, name: str, *shape: int) -> Weight:
        codes = self._reader.read_codes(name, *shape)
        return self._reader.read_as(torch.bfloat16, name, *shape) if codes is None else codes


def _one_of(experts: Weight, idx: int) -> Weight:
    return experts[idx] if isinstance(experts, torch.Tensor) else experts.matrix(idx)


def _transposed(experts: Weight, idx: int) -> Weight:
    if not isinstance(experts, torch.Tensor):
        raise ConfigError("codes of experts that are stored transposed are not supported")
    return experts[idx].T.contiguous()
