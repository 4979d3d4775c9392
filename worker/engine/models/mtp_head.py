"""MTP heads: one more layer of a checkpoint, which guesses the token behind the next one.

arXiv 2412.19437, section 2.2, and the checkpoints of DeepSeek V3, GLM 4.5 and Qwen3-Next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.models.decoder import make_attention, make_mlps, make_norm
from worker.engine.models.decoder_config import DecoderConfig, with_latents
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_config import LLAMA_PLACES, MtpLayout
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import Norm, NormWeights
from worker.engine.models.renaming_reader import RenamingReader, renamed


def mtp_layer(model: DecoderConfig) -> DecoderConfig:
    """The layer, as a model that has no other one: like the last one that attends. Raises
    ConfigError.
    """
    if model.norm_places != LLAMA_PLACES or model.is_parallel or model.kept_inputs:
        raise ConfigError(f"no MTP head is known of a model with the norms of {model.architecture}")
    attention_ids = model.attention_ids
    layer_id = max(each for each, turn in enumerate(attention_ids) if turn is not None)
    turn = attention_ids[layer_id]
    assert turn is not None
    if model.attention_layers[turn].window is not None:
        raise ConfigError(f"no MTP head is known of {model.architecture}, which has windows")
    layer = replace(
        model,
        num_layers=1,
        mlp_sizes=model.mlp_sizes[layer_id : layer_id + 1],
        attention_layers=model.attention_layers[turn : turn + 1],
        layer_ropes=model.layer_ropes[turn : turn + 1],
        experts=model.experts[layer_id : layer_id + 1],
        attends=(),
        recurrent=(),
        state_layers=(),
    )
    if model.latent is None:
        return layer
    indexer = model.latent.indexer
    if indexer is not None:  # each chooses for itself
        indexer = replace(indexer, layer_ids=(0,))
    return with_latents(layer, replace(model.latent, indexer=indexer))


class MtpHead:
    """A layer that is given, for each token, what the large model's last norm gives of it, and the
    embedding of the one behind it. Its guesses come out of the large model's head.

    Reads its weights when it is made; afterwards nothing of it changes.
    """

    def __init__(
        self, layout: MtpLayout, config: DecoderConfig, reader: WeightReader, ops: LayerOps
    ) -> None:
        """`config`: as `mtp_layer` tells it. Raises ConfigError."""
        size = config.hidden_size

        def norm(name: str) -> Norm:
            weight = reader.read(f"{name}.weight", size)
            return make_norm(config, NormWeights(weight, None), ops)

        self.attention_layers: Sequence[AttentionLayer] = config.attention_layers
        self._ops = ops
        self._is_hidden_first = layout.is_hidden_first
        self._embedding_norm = norm(layout.embedding_norm)
        self._hidden_norm = norm(layout.hidden_norm)
        self._join = ops.linears.make(reader.read(f"{layout.join}.weight", size, 2 * size), None)
        weights = DecoderWeights(config, _LayerReader(reader, (("model.layers.0.", layout.layer),)))
        layer = weights.layer(0)
        self._before_attention = make_norm(config, layer.before_attention, ops)
        self._mixer = make_attention(config, weights, ops, 0, 0)
        self._before_mlp = make_norm(config, layer.before_mlp, ops)
        (mlp,) = make_mlps(config, weights, ops, None)
        assert mlp is not None, "a layer that attends has one"
        self._mlp = mlp
        self._norm = norm(layout.norm)

    def given(self, streams: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size], as they are."""
        return streams

    def forward(
        self,
        batch: ModelInput,
        asking: torch.Tensor,
        embeddings: torch.Tensor,
        given: torch.Tensor,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """As a `Head`. Of tokens that are not asked for it computes keys and values alone: what it
        reads of a prompt costs no MLP, which may be a mixture of experts.
        """
        self._ops.begin(batch.rope_positions)
        parts = [self._embedding_norm.of(embeddings.to(given.dtype)), self._hidden_norm.of(given)]
        residual = self._join(torch.cat(parts[::-1] if self._is_hidden_first else parts, dim=-1))
        x = self._before_attention.of(residual)
        attended = self._mixer.forward(x, batch, attention)[asking]
        if not len(asking):
            return attended
        x, residual = self._before_mlp.of_sum(attended, residual[asking])
        return self._norm.of_sum(self._mlp.forward(x, batch), residual)[0]


class _LayerReader(RenamingReader):
    """Has nothing of the model's own layers."""

    def _stored(self, name: str) -> str:
        return renamed(name, self._stored_names)
