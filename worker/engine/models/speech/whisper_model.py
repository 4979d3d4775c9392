"""Whisper: transformers' encoder, and a decoder over paged attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import Linear, Linears
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.layer_config import NormConfig
from worker.engine.models.layer_ops import activate
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import FloatNorm, NormWeights
from worker.engine.models.speech.whisper_config import WhisperConfig, make_encoder

_NORM = NormConfig(kind="layer", eps=1e-5, has_bias=True)


class CrossAttention(Protocol):
    """Keeps what the requests of a step hear."""

    def attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        """Each token over the window of its request: [num_tokens, num_heads, head_dim] -> the
        same. `q` is scaled.
        """
        ...


class WhisperEncoder:
    """From a window of audio to the keys and values of each layer of the decoder."""

    def __init__(self, config: WhisperConfig, reader: WeightReader, dtype: torch.dtype) -> None:
        self._num_heads = config.num_heads
        self._model = _read_encoder(config, reader, dtype)
        size = config.hidden_size
        self._layers = [
            _CrossWeights(reader, f"model.decoder.layers.{layer_id}.encoder_attn.", size)
            for layer_id in range(config.num_layers)
        ]

    def keys_and_values(self, window: npt.NDArray[np.float32]) -> torch.Tensor:
        """[num_mel_bins, WINDOW_FRAMES] -> [num_layers, 2, num_heads, NUM_SOUNDS, head_dim]."""
        features = torch.from_numpy(window)[None].to(self._model.dtype)
        (sounds,) = self._model(features).last_hidden_state
        return torch.stack([self._by_head(layer.of(sounds)) for layer in self._layers])

    def _by_head(self, vectors: torch.Tensor) -> torch.Tensor:
        """[2, NUM_SOUNDS, hidden_size] -> [2, num_heads, NUM_SOUNDS, head_dim]."""
        return vectors.view(*vectors.shape[:2], self._num_heads, -1).transpose(1, 2)


class WhisperDecoder:
    """A `Model`. What its layers hear, `cross` has."""

    def __init__(
        self, config: WhisperConfig, reader: WeightReader, linears: Linears, cross: CrossAttention
    ) -> None:
        self.attention_layers: Sequence[AttentionLayer] = config.attention_layers
        size = config.hidden_size
        prefix = "model.decoder."
        self._embeddings = reader.read(f"{prefix}embed_tokens.weight", config.vocab_size, size)
        self._positions = reader.read(
            f"{prefix}embed_positions.weight", config.max_context_limit, size
        )
        self._layers = [
            _Layer(config, reader, linears, layer_id, cross)
            for layer_id in range(config.num_layers)
        ]
        self._norm = _norm(reader, f"{prefix}layer_norm", size)
        head = self._embeddings
        if not config.hf_config.tie_word_embeddings:
            head = reader.read("proj_out.weight", config.vocab_size, size)
        self._head = linears.make(head, None)

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size]."""
        x = functional.embedding(batch.input_ids, self._embeddings)
        x = x + functional.embedding(batch.positions, self._positions)
        for layer in self._layers:
            x = layer.forward(x, attention)
        return self._norm.of(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden)

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        raise ConfigError("adapters are not supported with models that hear")


class _Layer:
    """Attends over the text, then over the audio."""

    def __init__(
        self,
        config: WhisperConfig,
        reader: WeightReader,
        linears: Linears,
        layer_id: int,
        cross: CrossAttention,
    ) -> None:
        size, prefix = config.hidden_size, f"model.decoder.layers.{layer_id}."
        self._layer_id = layer_id
        self._cross = cross
        self._num_heads = config.num_heads
        self._scale = config.attention_layers[layer_id].scale

        def linear(name: str, num_out: int, num_in: int) -> Linear:
            weight = reader.read(f"{prefix}{name}.weight", num_out, num_in)
            return linears.make(weight, reader.read(f"{prefix}{name}.bias", num_out))

        own = f"{prefix}self_attn."
        parts = [reader.read(f"{own}{each}_proj.weight", size, size) for each in "qkv"]
        query_bias = reader.read(f"{own}q_proj.bias", size)
        biases = [
            query_bias,
            torch.zeros_like(query_bias),
            reader.read(f"{own}v_proj.bias", size),
        ]
        self._qkv = linears.make(torch.cat(parts), torch.cat(biases))
        self._output = linear("self_attn.out_proj", size, size)
        self._cross_query = linear("encoder_attn.q_proj", size, size)
        self._cross_output = linear("encoder_attn.out_proj", size, size)
        self._up = linear("fc1", config.mlp_size, size)
        self._down = linear("fc2", size, config.mlp_size)
        self._own_norm = _norm(reader, f"{prefix}self_attn_layer_norm", size)
        self._cross_norm = _norm(reader, f"{prefix}encoder_attn_layer_norm", size)
        self._mlp_norm = _norm(reader, f"{prefix}final_layer_norm", size)

    def forward(self, x: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        qkv = self._qkv(self._own_norm.of(x)).view(len(x), 3, self._num_heads, -1)
        queries, keys, values = qkv.unbind(1)
        x = x + self._output(attention.forward(queries, keys, values, self._layer_id))
        queries = self._cross_query(self._cross_norm.of(x)) * self._scale
        heard = self._cross.attend(queries.view(len(x), self._num_heads, -1), self._layer_id)
        x = x + self._cross_output(heard.flatten(1))
        return x + self._down(activate(self._up(self._mlp_norm.of(x)), "gelu"))


class _CrossWeights:
    """What makes keys and values of sounds: always of a whole window, so that no sum changes."""

    def __init__(self, reader: WeightReader, prefix: str, size: int) -> None:
        self._key = reader.read(f"{prefix}k_proj.weight", size, size)
        self._value = reader.read(f"{prefix}v_proj.weight", size, size)
        self._value_bias = reader.read(f"{prefix}v_proj.bias", size)

    def of(self, sounds: torch.Tensor) -> torch.Tensor:
        """[NUM_SOUNDS, hidden_size] -> [2, NUM_SOUNDS, hidden_size]."""
        keys = functional.linear(sounds, self._key)
        return torch.stack([keys, functional.linear(sounds, self._value, self._value_bias)])


def _norm(reader: WeightReader, name: str, size: int) -> FloatNorm:
    weights = NormWeights(reader.read(f"{name}.weight", size), reader.read(f"{name}.bias", size))
    return FloatNorm(_NORM, weights)


def _read_encoder(config: WhisperConfig, reader: WeightReader, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        model = make_encoder(config, dtype)
    weights = {
        name: reader.read(f"model.encoder.{name}", *each.shape)
        for name, each in model.state_dict().items()
    }
    model.load_state_dict(weights, assign=True)
    return model
