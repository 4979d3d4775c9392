"""What each layer is given of a token beside the stream, and what ends a layer for it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_config import LayerInputsConfig
from worker.engine.models.layer_ops import LayerOps, activate
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import rms_norm


class LayerInputs:
    """Embeddings of a token for all layers, to which come parts of its embedding in the stream."""

    def __init__(
        self,
        config: DecoderConfig,
        inputs: LayerInputsConfig,
        weights: DecoderWeights,
        ops: LayerOps,
    ) -> None:
        self._num_layers, self._size = config.num_layers, inputs.size
        self._image_token_id = inputs.image_token_id
        self._is_short = inputs.vocab_size < config.vocab_size
        size, hidden_size = config.num_layers * inputs.size, config.hidden_size
        # [vocab_size, num_layers * size]
        self._embeddings = weights.reader.read(
            "model.embed_tokens_per_layer.weight", inputs.vocab_size, size
        )
        rounded = torch.tensor(inputs.size**0.5, dtype=self._embeddings.dtype)
        self._embedding_scale = float(rounded)
        sizes = {"per_layer_model_projection": size}
        self._projection = ops.projection(*weights.projection("model.", sizes, hidden_size))
        self._projection_scale = hidden_size**-0.5
        self._norm = weights.reader.read("model.per_layer_projection_norm.weight", inputs.size)
        self._eps = config.norm.eps

    def of(self, batch: ModelInput, embeddings: torch.Tensor) -> torch.Tensor:
        """[num_layers, num_tokens, size]; `embeddings` [num_tokens, hidden_size] of the stream."""
        input_ids = batch.input_ids
        if self._is_short:
            input_ids = torch.where(input_ids < len(self._embeddings), input_ids, 0)
        if batch.image_rows:
            input_ids = input_ids.clone()
            for places, _ in batch.image_rows:
                input_ids[places] = self._image_token_id
        projected = self._by_layer(self._projection(embeddings) * self._projection_scale)
        own = functional.embedding(input_ids, self._embeddings) * self._embedding_scale
        given = rms_norm(projected, self._norm, self._eps) + self._by_layer(own)
        return (given * 2**-0.5).transpose(0, 1)

    def _by_layer(self, values: torch.Tensor) -> torch.Tensor:
        return values.view(-1, self._num_layers, self._size)


class LayerEnd(Protocol):
    """What ends a layer that is given inputs."""

    def end(
        self,
        delta: torch.Tensor,  # as `Layer.forward` gives them
        residual: torch.Tensor,
        given: torch.Tensor | None,  # [num_tokens, size], of this layer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, behind it."""
        ...


class ScaledEnd:
    """Adds to the stream what a layer makes of its inputs, and scales it."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        layer_id: int,
        ops: LayerOps,
    ) -> None:
        prefix, inputs = f"model.layers.{layer_id}.", config.layer_inputs
        self._scale = read_layer_scale(weights.reader, layer_id)
        self._inputs = inputs
        self._eps = config.norm.eps
        if inputs is not None:
            size, hidden_size = inputs.size, config.hidden_size
            gate = weights.projection(prefix, {"per_layer_input_gate": size}, hidden_size)
            up = weights.projection(prefix, {"per_layer_projection": hidden_size}, size)
            self._gate, self._up = ops.projection(*gate), ops.projection(*up)
            name = f"{prefix}post_per_layer_input_norm.weight"
            self._norm = weights.reader.read(name, hidden_size)

    def end(
        self, delta: torch.Tensor, residual: torch.Tensor, given: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `LayerEnd` has it."""
        if self._inputs is not None and given is not None:
            residual = residual + delta
            gates = activate(self._gate(residual), self._inputs.activation)
            delta = rms_norm(self._up(gates * given), self._norm, self._eps)
        return delta * self._scale, residual * self._scale


def read_layer_scale(reader: WeightReader, layer_id: int) -> torch.Tensor:
    """[1]: what the stream is multiplied with when the layer is done."""
    return reader.read(f"model.layers.{layer_id}.layer_scalar", 1)
