"""Mixtures of experts within a model of transformers, and ours in their place."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worker.engine.models.expert_kinds import gate_of, shape_of
from worker.engine.models.expert_weights import ExpertLayer, ExpertProducts, Gate
from worker.engine.models.stored_experts import ExpertSource, checked_experts
from worker.engine.models.transformers_config import make_model

_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.")


class CodedExperts(torch.nn.Module):
    """In the place of a module of experts. It gets its weights after the model is made, and has no
    parameters that transformers would want to read.
    """

    def __init__(self, shape: tuple[int, int, int], gate: Gate) -> None:
        super().__init__()
        self._shape = shape  # num_experts, hidden_size, intermediate_size
        self._gate = gate
        self._layer: ExpertLayer | None = None

    def read(self, name: str, source: ExpertSource, products: ExpertProducts) -> None:
        """Raises ConfigError where they are not as the configuration says."""
        self._layer = products.make(checked_experts(name, source, self._shape), self._gate)

    def forward(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        assert self._layer is not None, "it was read"
        return self._layer(inputs, expert_ids, shares)


@dataclass(frozen=True, slots=True)
class PlacedExperts:
    """Modules of a model whose place ours take, and where each finds its weights."""

    sources: Mapping[str, ExpertSource]  # by the names of the modules
    num_left: int = 0  # modules of such experts without a source

    @classmethod
    def of(
        cls, hf_config: Any, dtype: torch.dtype, sources: Mapping[int, ExpertSource]
    ) -> PlacedExperts:
        """Makes those of the layers that have a source. Raises what the model may raise."""
        if not sources:
            return cls({})
        with torch.device("meta"):
            model = make_model(copy.deepcopy(hf_config), dtype)
        found, num_left = {}, 0
        for name, module in model.named_modules():
            if gate_of(module) is None:
                continue
            match = _LAYER.match(name)
            source = None if match is None else sources.get(int(match[1]))
            if source is None:
                num_left += 1
            else:
                found[name] = source
        return cls(found, num_left)

    def put_into(self, model: torch.nn.Module) -> None:
        """Before it has weights."""
        for name in self.sources:
            module = model.get_submodule(name)
            gate = gate_of(module)
            assert gate is not None, "it was found so"
            model.set_submodule(name, CodedExperts(shape_of(module), gate))

    def maker(self, maker: Any) -> Any:
        """A class of transformers whose models have ours in their places."""
        if not self.sources:
            return maker
        placed = self

        def make(model: Any, config: Any, *args: Any, **options: Any) -> None:
            maker.__init__(model, config, *args, **options)
            placed.put_into(model)

        return type(maker.__name__, (maker,), {"__init__": make, "__module__": maker.__module__})

    def without(self, weights: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a loader, less the weights that ours read themselves."""
        if not self.sources:
            return weights
        names = frozenset().union(*(source.names for source in self.sources.values()))
        rest = {name: each for name, each in weights["state_dict"].items() if name not in names}
        return weights | {"state_dict": rest}

    def read(self, model: torch.nn.Module, products: ExpertProducts) -> None:
        """Raises ConfigError."""
        for name, source in self.sources.items():
            module = model.get_submodule(name)
            assert isinstance(module, CodedExperts), "it was put there"
            module.read(name, source, products)
