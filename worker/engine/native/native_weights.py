"""A decoder's weights as the C++ decoder multiplies them."""

from __future__ import annotations

import weakref

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_layer import AttentionLayer
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights, LayerWeights, Projection
from worker.engine.models.loader import WeightReader
from worker.engine.native.native_library import LayerStruct, LinearStruct, NativeLibrary

VECTOR = 16  # kLanes of vector_math.h
BLOCK_COLS = 32  # kBlockCols of linear.h


class NativeWeights:
    """Reads a checkpoint in bfloat16 and packs it. Owns all memory that its structs point to."""

    def __init__(
        self, library: NativeLibrary, config: DecoderConfig, checkpoint: WeightReader
    ) -> None:
        self.library = library
        self.config = config
        self._tensors: list[torch.Tensor] = []  # kept alive
        weights = DecoderWeights(config, checkpoint)
        embeddings = weights.embeddings()
        self.embeddings = embeddings.clone()  # of its own: the checkpoint's files are let go
        self.layers = [
            self._layer(weights.layer(layer_id), attention)
            for layer_id, attention in enumerate(config.attention_layers)
        ]
        self.final_norm = self._floats(weights.norm())
        self.lm_head = self._linear(Projection(weights.lm_head(embeddings), None))

    def _layer(self, weights: LayerWeights, attention: AttentionLayer) -> LayerStruct:
        """Without its part of the KV pool."""
        norm = weights.qk_norm
        return LayerStruct(
            attention_norm=self._floats(weights.attention_norm),
            qkv=self._linear(weights.qkv),
            query_norm=None if norm is None else self._floats(norm[0]),
            key_norm=None if norm is None else self._floats(norm[-1]),
            output=self._linear(weights.output),
            mlp_norm=self._floats(weights.mlp_norm),
            gate_up=self._linear(weights.gate_up, interleaved=True),
            down=self._linear(weights.down),
            window=attention.window or 0,
            attention_scale=attention.scale,
        )

    def _linear(self, projection: Projection, *, interleaved: bool = False) -> LinearStruct:
        weight = projection.weight.contiguous()
        out_features, in_features = weight.shape
        packed = self.library.pack_linear(
            weight.data_ptr(), out_features, in_features, int(interleaved)
        )
        if packed is None:
            raise ConfigError(f"no memory for a weight of {weight.nbytes >> 20} MiB")
        weakref.finalize(self, self.library.free, packed)
        bias = projection.bias
        if bias is not None:
            bias_ptr = self._floats(_interleave(bias) if interleaved else _pad(bias, BLOCK_COLS))
        return LinearStruct(packed, None if bias is None else bias_ptr, in_features, out_features)

    def _floats(self, tensor: torch.Tensor) -> int:
        tensor = tensor.float().contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()


def _interleave(bias: torch.Tensor) -> torch.Tensor:
    """As pack_linear does with the rows: sixteen of the first half, then their partners."""
    halves = [_pad(half, VECTOR).view(-1, VECTOR) for half in bias.chunk(2)]
    return torch.cat(halves, dim=1).flatten()


def _pad(values: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % multiple))
