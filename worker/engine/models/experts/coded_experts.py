"""Experts that are multiplied as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import (
    ChooseExperts,
    ExpertLayer,
    ExpertMaker,
    ExpertProducts,
    ExpertWeights,
    Gate,
    SiluGate,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.experts.stored_layers import read_experts
from worker.engine.models.loader import CodeReader, WeightReader
from worker.engine.models.stored_experts import ExpertSource, Weight, checked_experts


class ExpertReader:
    """Reads the experts of a fused decoder's layers."""

    def __init__(self, reader: CodeReader, sources: Mapping[int, ExpertSource]) -> None:
        """`sources`: by layer, of what the reader has no codes of."""
        self._reader = reader
        self._sources = sources

    def read(self, config: ExpertsConfig, prefix: str, layer_id: int) -> Iterator[ExpertWeights]:
        """Reads experts that have a gate; `prefix` begins the names of the MLP's tensors.

        Raises ConfigError.
        """
        source = self._sources.get(layer_id)
        if source is None:
            return self._read(config, prefix)
        shape = config.num_experts, config.outer_size, config.intermediate_size
        return checked_experts(f"{prefix}experts", source, shape)

    def _read(self, config: ExpertsConfig, prefix: str) -> Iterator[ExpertWeights]:
        for stored in read_experts(config, self._reader, prefix, self.weight):
            yield ExpertWeights(stored.up(), Projection(stored.down, stored.down_bias))

    def weight(self, name: str, *shape: int) -> Weight:
        """In codes where it is stored so."""
        codes = self._reader.read_codes(name, *shape)
        return self._reader.read_as(torch.bfloat16, name, *shape) if codes is None else codes


class CodedExperts:
    """An `ExpertMaker`: gives them to who multiplies codes, but for kinds that it does not know."""

    def __init__(self, products: ExpertProducts, reader: ExpertReader, others: ExpertMaker) -> None:
        self._products = products
        self._reader = reader
        self._others = others

    @property
    def choose(self) -> ChooseExperts:
        return self._others.choose

    def make(
        self, config: ExpertsConfig, reader: WeightReader, prefix: str, layer_id: int
    ) -> ExpertLayer:
        if not config.num_coded_values:
            return self._others.make(config, reader, prefix, layer_id)
        return self._products.make(self._reader.read(config, prefix, layer_id), gate_of(config))


def gate_of(config: ExpertsConfig) -> Gate:
    """The gate of experts that have one."""
    return config.mlp.clamp or SiluGate()
