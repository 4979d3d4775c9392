"""A decoder's weights as the C++ decoder multiplies them."""

from __future__ import annotations

from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import (
    AttentionWeights,
    DecoderWeights,
    LayerWeights,
    MlpWeights,
    Projection,
)
from worker.engine.models.loader import CodeReader
from worker.engine.native.native_library import LayerStruct, NativeLibrary
from worker.engine.native.packed_weights import PackedWeights


class NativeWeights:
    """Reads a checkpoint and packs it: in bfloat16, and quantised weights as they are stored."""

    def __init__(
        self, library: NativeLibrary, config: DecoderConfig, checkpoint: CodeReader
    ) -> None:
        self.library = library
        self.config = config
        self._packed = PackedWeights(library)
        weights = DecoderWeights(config, checkpoint, codes=checkpoint)
        self.layers = [
            self._layer(
                weights.layer(layer_id),
                weights.attention(layer_id),
                weights.mlp(layer_id),
                attention,
            )
            for layer_id, attention in enumerate(config.attention_layers)
        ]
        self.coded_share = self._packed.coded_share  # of the layers: few checkpoints quantise more
        self.final_norm = self._packed.floats(weights.norm().weight)
        self.embeddings = self._packed.linear(Projection(weights.stored_embeddings(), None))
        head = weights.stored_head()
        self.lm_head = self.embeddings
        if head is not None:
            self.lm_head = self._packed.linear(Projection(head, None))
        self.num_bytes = self._packed.num_bytes

    def _layer(
        self,
        weights: LayerWeights,
        attention_weights: AttentionWeights,
        mlp: MlpWeights,
        attention: AttentionLayer,
    ) -> LayerStruct:
        """Without its part of the KV pool."""
        norm, before_mlp = attention_weights.head_norm, weights.before_mlp
        assert weights.before_attention is not None, "it is a layer of Llama's kind"
        assert before_mlp is not None, "so is this"
        return LayerStruct(
            attention_norm=self._packed.floats(weights.before_attention.weight),
            qkv=self._packed.linear(attention_weights.qkv),
            query_norm=None if norm is None else self._packed.floats(norm[0]),
            key_norm=None if norm is None else self._packed.floats(norm[-1]),
            output=self._packed.linear(attention_weights.output),
            mlp_norm=self._packed.floats(before_mlp.weight),
            gate_up=self._packed.linear(mlp.gate_up, interleaved=True),
            down=self._packed.linear(mlp.down),
            window=attention.window or 0,
            attention_scale=attention.scale,
        )
