"""Adapters on the modules of a model that somebody else computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Linear, Module

from shared.errors import ConfigError
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.layers.linear import Linears, PlainLinears
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.lora.lora_projection import LoraProjection, LoraSlice
from worker.engine.lora.lora_weights import LoraWeights
from worker.engine.models.decoder_lora import check_pair


class ModuleLoras:
    """Of the linear layers in a model's body. Steps without an adapter know nothing of it."""

    def __init__(self, body_name: str, body: Module) -> None:
        self._modules = {
            f"{body_name}.{name}": module
            for name, module in body.named_modules()
            # An expert sees some of the tokens: a row's number does not say whose it is.
            if type(module) is Linear and ".experts." not in name
        }
        self._in_use: set[str] = set()  # by an adapter that was loaded at any time

    def projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError for what is no linear layer, or one of another shape."""
        projections = {}
        for name, pair in weights.items():
            module = self._modules.get(name)
            if module is None:
                raise ConfigError(f"an adapter on {name!r} is not supported")
            check_pair(name, pair, module.in_features, module.out_features)
            linears = _linears_beside(module.weight)
            projections[name] = LoraProjection([LoraSlice(0, module.out_features, pair)], linears)
        self._in_use |= projections.keys()
        return projections

    @contextmanager
    def applied(self, loras: LoraBatch) -> Iterator[None]:
        """While it lasts, the modules add what the step's adapters add."""
        handles = [
            self._modules[name].register_forward_hook(_Hook(name, loras)) for name in self._in_use
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _linears_beside(weight: torch.Tensor) -> Linears:
    """Of its device and format."""
    return choose_linears(weight.dtype) if weight.device.type == "cpu" else PlainLinears()


class _Hook:
    """Of one module in one step."""

    def __init__(self, name: str, loras: LoraBatch) -> None:
        self._name = name
        self._loras = loras

    def __call__(
        self, module: Module, inputs: tuple[Any, ...], output: torch.Tensor
    ) -> torch.Tensor:
        (x,) = inputs
        self._loras.add(self._name, x.flatten(0, -2), output.view(-1, output.shape[-1]))
        return output
