"""EAGLE-3 heads: one layer that guesses with the residual streams of a large model.

arXiv 2503.01840, and the checkpoints of `LlamaForCausalLMEagle3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.models.decoder import AttentionMixer
from worker.engine.models.decoder_config import QKV_PARTS, DecoderConfig
from worker.engine.models.decoder_weights import AttentionWeights, MlpWeights, Projection
from worker.engine.models.dense_mlp import DenseMlp
from worker.engine.models.families.llama import llama_config
from worker.engine.models.layer_config import GATE_UP_PARTS
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.norms import rms_norm

EAGLE_ARCHITECTURE = "LlamaForCausalLMEagle3"
NUM_STREAMS = 3
STREAM_LAYERS = "eagle_aux_hidden_state_layer_ids"
UNREAD_TENSORS = ("t2d", "model.t2d")  # the inverse of d2t


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """As config.json has it."""

    path: Path
    decoder: DecoderConfig  # of its one layer
    target_hidden_size: int
    draft_vocab_size: int  # tokens that it may guess
    stream_layers: tuple[int, ...] | None  # into which the streams come; None: it does not say

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError."""
        config = ConfigFile.read(path)
        for name, *allowed in (
            ("num_hidden_layers", 1),
            ("attention_bias", False),
            ("mlp_bias", False),
            ("bias", False),
            ("tie_word_embeddings", False),
            ("norm_before_residual", False),
            ("norm_before_fc", False),
        ):
            config.refuse(name, *allowed)
        decoder = llama_config(
            config.replaced(num_hidden_layers=1, architectures=[EAGLE_ARCHITECTURE])
        )
        num_drafted = config.integer("draft_vocab_size", decoder.vocab_size)
        if num_drafted > decoder.vocab_size:
            raise ConfigError(
                f"{path}: draft_vocab_size={num_drafted} is more than "
                f"vocab_size={decoder.vocab_size}"
            )
        return cls(
            path,
            decoder,
            config.integer("target_hidden_size", decoder.hidden_size),
            num_drafted,
            _stream_layers(config),
        )

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The layers of a model with so many. Raises ConfigError."""
        layers = self.stream_layers or (2, num_layers // 2, num_layers - 3)
        if [*layers] != sorted({*layers}) or layers[0] < 0 or layers[-1] >= num_layers:
            told = "is" if self.stream_layers else "is not told, and would be"
            raise ConfigError(
                f"{self.path}: {STREAM_LAYERS} {told} {list(layers)}, which are no three of the "
                f"model's {num_layers} layers in their order"
            )
        return layers

    @property
    def num_parameters(self) -> int:
        """Without embeddings, norms and biases."""
        decoder = self.decoder
        size, layer = decoder.hidden_size, decoder.attention_layers[0]
        attention_size = layer.head_dim * (layer.num_heads + 2 * layer.num_kv_heads)
        return (
            decoder.num_projection_values
            + size * attention_size  # of the hidden state, beside the embedding's
            + NUM_STREAMS * self.target_hidden_size * size
            + self.draft_vocab_size * size
        )


def _stream_layers(config: ConfigFile) -> tuple[int, ...] | None:
    """At the top, or in `eagle_config`, where they are the layers that the streams come out of."""
    section = config.section("eagle_config")
    value, shift = config.get(STREAM_LAYERS, None), 0
    if value is None and section is not None:
        value, shift = section.get(STREAM_LAYERS, None), 1
    if value is None:
        return None
    is_list = isinstance(value, list) and all(type(each) is int for each in value)
    if not is_list or len(value) != NUM_STREAMS:
        raise ConfigError(
            f"{config.path}: {STREAM_LAYERS!r} must be {NUM_STREAMS} layers, not {value!r}"
        )
    return tuple(each + shift for each in value)


class EagleHead:
    """A layer that is given, for each token, the streams of the one before it.

    Reads its weights when it is made; afterwards nothing of it changes.
    """

    def __init__(self, config: EagleConfig, reader: WeightReader, ops: LayerOps) -> None:
        """Raises ConfigError."""
        decoder, size = config.decoder, config.decoder.hidden_size
        layer = "model.midlayer."
        if not reader.has(f"{layer}hidden_norm.weight"):
            layer = "model.layers.0."
        self.attention_layers: Sequence[AttentionLayer] = decoder.attention_layers
        self._ops = ops
        self._eps = decoder.norm.eps
        self._num_outputs = decoder.vocab_size
        width = NUM_STREAMS * config.target_hidden_size
        self._join = ops.linears.make(reader.read("model.fc.weight", size, width), None)
        self._input_norm = reader.read(f"{layer}input_layernorm.weight", size)
        self._hidden_norm = reader.read(f"{layer}hidden_norm.weight", size)
        self._mlp_norm = reader.read(f"{layer}post_attention_layernorm.weight", size)
        self._norm = reader.read("model.norm.weight", size)
        weights = _attention(decoder, reader, f"{layer}self_attn.")
        self._mixer = AttentionMixer(decoder, weights, ops, 0, 0)
        self._mlp = DenseMlp(decoder.mlp, _mlp(decoder, reader, f"{layer}mlp."), ops, 0)
        self._lm_head = ops.head(reader.read("lm_head.weight", config.draft_vocab_size, size))
        self._token_ids = _token_ids(config, reader)
        name = "model.embed_tokens.weight"
        self.own_embeddings = (  # None: the large model's
            reader.read(name, decoder.vocab_size, size) if reader.has(name) else None
        )

    def given(self, streams: torch.Tensor) -> torch.Tensor:
        """[num_tokens, 3 * target_hidden_size] -> [num_tokens, hidden_size]."""
        joined: torch.Tensor = self._join(streams)
        return joined

    def forward(
        self,
        batch: ModelInput,
        asking: torch.Tensor,
        embeddings: torch.Tensor,
        given: torch.Tensor,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """As a `Head`."""
        self._ops.begin(batch.rope_positions)
        x = rms_norm(embeddings.to(given.dtype), self._input_norm, self._eps)
        x = torch.cat([x, rms_norm(given, self._hidden_norm, self._eps)], dim=-1)
        attended = self._mixer.forward(x, batch, attention)[asking]
        x, given = self._ops.add_rms_norm(attended, given[asking], self._mlp_norm, self._eps)
        return given + self._mlp.forward(x, batch)

    def logits(self, made: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs] float32."""
        logits: torch.Tensor = self._lm_head(rms_norm(made, self._norm, self._eps)).float()
        if self._token_ids is None:
            return logits
        everything = torch.full((len(logits), self._num_outputs), -torch.inf)
        return everything.index_copy_(1, self._token_ids, logits)


def _attention(config: DecoderConfig, reader: WeightReader, prefix: str) -> AttentionWeights:
    """Attention of the embedding and what is given beside it."""
    size, layer = config.hidden_size, config.attention_layers[0]
    nums_heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    qkv = [
        reader.read(f"{prefix}{name}.weight", num_heads * layer.head_dim, 2 * size)
        for name, num_heads in zip(QKV_PARTS, nums_heads, strict=True)
    ]
    output = reader.read(f"{prefix}o_proj.weight", size, layer.num_heads * layer.head_dim)
    return AttentionWeights(Projection(torch.cat(qkv), None), None, None, Projection(output, None))


def _mlp(config: DecoderConfig, reader: WeightReader, prefix: str) -> MlpWeights:
    size, inner_size = config.hidden_size, config.intermediate_size
    gate_up = [reader.read(f"{prefix}{name}.weight", inner_size, size) for name in GATE_UP_PARTS]
    down = reader.read(f"{prefix}down_proj.weight", size, inner_size)
    return MlpWeights(Projection(torch.cat(gate_up), None), Projection(down, None), None)


def _token_ids(config: EagleConfig, reader: WeightReader) -> torch.Tensor | None:
    """[draft_vocab_size] int64: the token of each output; None: they are the large model's."""
    num_tokens, num_drafted = config.decoder.vocab_size, config.draft_vocab_size
    if num_drafted == num_tokens and not reader.has("model.d2t"):
        return None
    shifts = reader.read_as(torch.int64, "model.d2t", num_drafted)
    token_ids = torch.arange(num_drafted) + shifts
    if token_ids.min() < 0 or token_ids.max() >= num_tokens:
        raise ConfigError(
            f"{config.path.parent}: 'd2t' names tokens {int(token_ids.min())} to "
            f"{int(token_ids.max())}, and the model has {num_tokens}"
        )
    return token_ids
