"""LoRA adapters beside the C++ decoder: it stops behind each projection, and torch adds to it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from worker.engine.layers.checked_linears import choose_linears
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_lora import (
    DOWN,
    GATE_UP,
    OUTPUT,
    QKV,
    decoder_projections,
    projection_name,
)

FEW_TOKENS = 64


class _Stop(NamedTuple):
    """A projection as the decoder shows it: inputs bfloat16, outputs to be added to."""

    name: str
    in_features: int
    out_features: int
    dtype: torch.dtype  # of the outputs


class NativeLoras:
    """Of one decoder."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        attention_size = config.num_heads * config.head_dim
        qkv_size = attention_size + 2 * config.num_kv_heads * config.head_dim
        hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
        self._stops = (  # in the order of ProjectionId of decoder.cpp
            _Stop(QKV, hidden_size, qkv_size, torch.bfloat16),
            _Stop(OUTPUT, attention_size, hidden_size, torch.float32),
            _Stop(GATE_UP, hidden_size, 2 * intermediate_size, torch.float32),
            _Stop(DOWN, intermediate_size, hidden_size, torch.float32),
        )

    def projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        num_threads = (1, torch.get_num_threads())  # see NativeLoraStep.running
        linears = choose_linears(torch.bfloat16, num_threads)
        return decoder_projections(self._config, weights, linears)

    def step(self, loras: LoraBatch, num_tokens: int) -> NativeLoraStep:
        return NativeLoraStep(self._stops, loras, num_tokens)


class NativeLoraStep:
    """What the decoder calls in one step. No exception crosses it: it is kept for later."""

    def __init__(self, stops: tuple[_Stop, ...], loras: LoraBatch, num_tokens: int) -> None:
        self._stops = stops
        self._loras = loras
        self._num_tokens = num_tokens
        self._failure: Exception | None = None

    def __call__(self, layer_id: int, projection: int, inputs: int, outputs: int) -> None:
        stop = self._stops[projection]
        try:
            self._loras.add(
                projection_name(layer_id, stop.name),
                _tensor_at(inputs, self._num_tokens, stop.in_features, torch.bfloat16),
                _tensor_at(outputs, self._num_tokens, stop.out_features, stop.dtype),
            )
        except Exception as exc:
            self._failure = self._failure or exc

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the decoder is at work. For a few tokens torch's threads cost more than they give:
        to wake them took ten times as long as the products. Raises what has failed.
        """
        num_threads = torch.get_num_threads()
        if self._num_tokens <= FEW_TOKENS:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)
        if self._failure is not None:
            raise self._failure


def _tensor_at(address: int, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_rows, size] over memory of the decoder."""
    memory = (ctypes.c_char * (num_rows * size * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(num_rows, size)
