"""A decoder with fused projections, over paged attention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Protocol

import torch

from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import Table
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.altup import AltupLayer, AltupStreams, Laurel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_ends import DecoderEntry, DecoderExit
from worker.engine.models.decoder_weights import AttentionWeights, DecoderWeights, LayerWeights
from worker.engine.models.dense_mlp import DenseMlp
from worker.engine.models.expert_weights import ExpertMaker
from worker.engine.models.experts.expert_mlp import (
    ExpertMlp,
    LinearExpertMaker,
    MlpBesideExperts,
)
from worker.engine.models.latent.indexer import Indexer
from worker.engine.models.latent.latent_mixer import LatentMixer
from worker.engine.models.layer_inputs import LayerEnd, LayerInputs, ScaledEnd
from worker.engine.models.layer_ops import LayerOps, sigmoid
from worker.engine.models.loader import CodeReader, WeightReader
from worker.engine.models.lora_linear import LoraLinear
from worker.engine.models.model import ModelInput
from worker.engine.models.model_lora import OUTPUT, QKV, decoder_projections
from worker.engine.models.norms import FloatNorm, HeadNorm, NoNorm, Norm, NormWeights, RmsNorm
from worker.engine.models.recurrent.recurrent_mixer import make_recurrent_mixer
from worker.engine.models.shared_block import Layer, put_in_shared_blocks


class DecoderModel:
    """Many families: one computation, told apart by the configuration.

    Reads its weights when it is made; afterwards nothing of it changes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        checkpoint: WeightReader,
        ops: LayerOps,
        experts: ExpertMaker | None = None,  # None: each matrix of each is a linear
        share: Callable[[WeightReader], WeightReader] | None = None,  # None: it has all of it
        codes: CodeReader | None = None,  # None: all is read in numbers
    ) -> None:
        weights = DecoderWeights(config, checkpoint, codes, share)
        self._config = config
        self._ops = ops
        self._attention_layers = attention_layers(config, weights)
        table: Table | None = None
        if config.begins_text or config.has_table_for_head:
            table = ops.table(weights.stored_embeddings())
        self._layers = [
            make_layer(config, weights, mixer, mlp, ops, layer_id)
            for layer_id, (mixer, mlp) in enumerate(
                zip(
                    make_mixers(config, weights, ops),
                    make_mlps(config, weights, ops, experts),
                    strict=True,
                )
            )
        ]
        if config.shared_blocks is not None:
            assert table is not None, "no stage shares blocks"
            put_in_shared_blocks(config, config.shared_blocks, self._layers, table, weights, ops)
        self._inputs: LayerInputs | None = None
        if config.layer_inputs is not None:
            self._inputs = LayerInputs(config, config.layer_inputs, weights, ops)
        self._ends: list[LayerEnd] = []
        if config.has_layer_scales:
            layer_ids = range(config.num_layers)
            self._ends = [ScaledEnd(config, weights, each, ops) for each in layer_ids]
        self._streams: AltupStreams | None = None
        if config.altup is not None:
            self._streams = AltupStreams(config, config.altup, weights, ops)
            layers = [
                AltupLayer(config, config.altup, weights, layer_id, layer, ops)
                for layer_id, layer in enumerate(self._layers)
            ]
            self._layers, self._ends = [*layers], [*layers]
        norm: Norm = NoNorm()
        if config.ends_text or config.norms_embeddings:
            norm = make_norm(config, weights.norm(), ops)
        self._entry: DecoderEntry | None = None
        if config.begins_text:
            assert table is not None
            self._entry = DecoderEntry(config, weights, table, norm)
        self._exit: DecoderExit | None = None
        if config.ends_text:
            self._exit = DecoderExit(config, weights, ops, table, norm)

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        return self._attention_layers

    def embeddings(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size], as the first layer is given them."""
        assert self._entry is not None, "it has the first layer"
        return self._entry.embeddings(input_ids)

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size], after the last norm; or the rows of the next stage."""
        return self.hidden_and_streams(batch, attention, ())[0]

    def hidden_and_streams(
        self, batch: ModelInput, attention: AttentionBackend, stream_layers: Collection[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """With the stream as it comes into each of `stream_layers`, of the same shape; behind the
        last layer, what the last norm gives.
        """
        streams: list[torch.Tensor] = []
        delta, residual = self._begin(batch)
        given = None if self._inputs is None else self._inputs.of(batch, residual)
        if self._streams is not None:
            residual = self._streams.begin(residual)
        self._ops.begin(batch.rope_positions)
        for layer_id, layer in enumerate(self._layers, start=1):
            if layer_id - 1 in stream_layers:
                streams.append(residual + delta)
            delta, residual = layer.forward(delta, residual, batch, attention)
            for places, rows in batch.image_rows:
                if layer_id < len(rows):
                    delta[places] += rows[layer_id]
            if self._ends:
                layer_input = None if given is None else given[layer_id - 1]
                delta, residual = self._ends[layer_id - 1].end(delta, residual, layer_input)
        if self._streams is not None:
            residual = self._streams.end(residual)
        if self._exit is None:
            return torch.stack([delta, residual], 1), streams
        hidden = self._exit.hidden(delta, residual)
        return hidden, streams + [hidden] * (len(self._layers) in stream_layers)

    def _begin(self, batch: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """What the first layer is given: the last one's output, and the stream before it."""
        if self._entry is None:
            assert batch.stage_rows is not None, "layers come before ours"
            delta, residual = batch.stage_rows.unbind(1)
            return delta.contiguous(), residual.contiguous()
        residual = self._entry.stream(batch)
        return torch.zeros_like(residual), residual

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs], in the model's dtype."""
        assert self._exit is not None, "it has the last layer"
        return self._exit.logits(hidden)

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        return decoder_projections(self._config, weights, self._ops.linears)


class Mixer(Protocol):
    """What joins the tokens of a layer."""

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        ...


class Mlp(Protocol):
    """What a layer does with each token by itself."""

    def forward(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        ...


class AttentionMixer:
    """Attention, between its projections."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: AttentionWeights,
        ops: LayerOps,
        layer_id: int,
        attention_id: int,  # its place among the layers that attend
    ) -> None:
        self._ops = ops
        self._attention_id = attention_id
        layer = config.attention_layers[attention_id]
        self._head_dim = layer.head_dim
        self._num_gates = layer.num_heads if config.has_attention_gate else 0
        self._qkv_bound = config.qkv_bound
        self._qkv = LoraLinear.of(weights.qkv, ops, layer_id, QKV)
        rotates = config.layer_ropes[attention_id] is not None
        self._head_norm = make_head_norm(config, layer, weights, ops, rotates=rotates)
        self._output = LoraLinear.of(weights.output, ops, layer_id, OUTPUT)

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        qkv = self._qkv(x, batch)
        if self._qkv_bound is not None:
            qkv = qkv.clamp(-self._qkv_bound, self._qkv_bound)
        heads = qkv.view(len(qkv), -1, self._head_dim)  # queries, then keys, then values
        if not self._num_gates:
            attended = self._ops.attend(heads, self._head_norm, self._attention_id, attention)
            return self._output(attended, batch)
        gates = heads[:, -self._num_gates :].flatten(1)
        heads = heads[:, : -self._num_gates]
        attended = self._ops.attend(heads, self._head_norm, self._attention_id, attention)
        return self._output(attended * sigmoid(gates).to(attended.dtype), batch)


class JoinedMixers:
    """Several beside each other: what they give is added."""

    def __init__(self, mixers: Sequence[Mixer]) -> None:
        self._mixers = mixers

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        first, *others = (mixer.forward(x, batch, attention) for mixer in self._mixers)
        return sum(others, first)


class SingleLayer:
    """A mixer or an MLP alone."""

    def __init__(self, norm: Norm, mixer: Mixer | None, mlp: Mlp | None) -> None:
        self._norm = norm
        self._mixer = mixer
        self._mlp = mlp

    def forward(
        self,
        delta: torch.Tensor,
        residual: torch.Tensor,
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self._norm.of_sum(delta, residual)
        if self._mixer is not None:
            return self._mixer.forward(x, batch, attention), residual
        assert self._mlp is not None, "a layer has something"
        return self._mlp.forward(x, batch), residual


class DecoderLayer:
    """A mixer and an MLP, each with norms of its own."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: LayerWeights,
        mixer: Mixer,
        mlp: Mlp,
        ops: LayerOps,
        kept_inputs: tuple[float, float] | None = None,  # None: beside both stays the stream
        laurel: Laurel | None = None,
    ) -> None:
        self._config = config
        self._ops = ops
        self._kept_inputs = kept_inputs
        self._laurel = laurel
        self._before_attention = make_norm(config, weights.before_attention, ops)
        self._mixer = mixer
        self._after_attention = make_norm(config, weights.after_attention, ops)
        self._before_mlp = make_norm(config, weights.before_mlp, ops)
        self._has_own_norm = weights.before_mlp is not None  # the MLP, beside attention
        self._mlp = mlp
        self._after_mlp = make_norm(config, weights.after_mlp, ops)

    def forward(
        self,
        delta: torch.Tensor,
        residual: torch.Tensor,
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self._before_attention.of_sum(delta, residual)
        if self._kept_inputs is not None:
            residual = x * self._kept_inputs[0]
        attended = self._mixer.forward(x, batch, attention)
        if self._config.is_parallel:
            if self._has_own_norm:
                x = self._before_mlp.of(residual)
            return self._ops.whole(attended + self._mlp.forward(x, batch)), residual
        attended = self._after_attention.of(self._ops.whole(attended))
        if self._laurel is not None:
            attended, residual = self._laurel.joined(x, attended, residual)
        x, residual = self._before_mlp.of_sum(attended, residual)
        if self._kept_inputs is not None:
            residual = x * self._kept_inputs[1]
        return self._after_mlp.of(self._ops.whole(self._mlp.forward(x, batch))), residual


def make_layer(
    config: DecoderConfig,
    weights: DecoderWeights,
    mixer: Mixer | None,
    mlp: Mlp | None,
    ops: LayerOps,
    layer_id: int,
) -> Layer:
    """Makes a layer with a mixer, an MLP, or both."""
    norms = weights.layer(layer_id)
    if mixer is None or mlp is None:
        return SingleLayer(make_norm(config, norms.before_attention, ops), mixer, mlp)
    kept_inputs = config.kept_inputs[layer_id] if config.kept_inputs else None
    laurel = None
    if config.altup is not None:
        laurel = Laurel(config, config.altup.laurel_rank, weights, layer_id, ops)
    return DecoderLayer(config, norms, mixer, mlp, ops, kept_inputs, laurel)


def make_mixers(
    config: DecoderConfig, weights: DecoderWeights, ops: LayerOps
) -> Iterator[Mixer | None]:
    """The mixers by layer; None: it has an MLP alone."""
    state_ids = count()
    for layer_id, attention_id in enumerate(config.attention_ids):
        mixers: list[Mixer] = []
        if attention_id is not None and config.shared_blocks is None:
            mixers.append(make_attention(config, weights, ops, layer_id, attention_id))
        recurrent = config.recurrent[layer_id] if config.recurrent else None
        if recurrent is not None:
            prefix = f"model.layers.{layer_id}.recurrent."
            state_id = next(state_ids)
            mixers.append(make_recurrent_mixer(recurrent, weights, prefix, ops, state_id))
        yield JoinedMixers(mixers) if len(mixers) > 1 else next(iter(mixers), None)


def make_attention(
    config: DecoderConfig, weights: DecoderWeights, ops: LayerOps, layer_id: int, attention_id: int
) -> Mixer:
    """`attention_id`: its place among the layers that attend."""
    if config.latent is None:
        return AttentionMixer(config, weights.attention(layer_id), ops, layer_id, attention_id)
    prefix = f"model.layers.{layer_id}.self_attn."
    indexer, indexer_config = None, config.latent.indexer
    if indexer_config is not None and layer_id in indexer_config.layer_ids:
        indexer_id = config.attention_layers[attention_id].indexer_id
        assert indexer_id is not None, "all layers have one"
        indexer = Indexer(config.latent, config.rope, weights, prefix, ops, indexer_id)
    return LatentMixer(config.latent, config.rope, weights, prefix, ops, attention_id, indexer)


def make_mlps(
    config: DecoderConfig,
    weights: DecoderWeights,
    ops: LayerOps,
    maker: ExpertMaker | None,
) -> Iterator[Mlp | None]:
    """The MLPs by layer; None: it has a mixer alone."""
    maker = maker or LinearExpertMaker(ops.projection)
    for layer_id, experts in enumerate(config.experts or (None,) * config.num_layers):
        mlp = config.mlp_of(layer_id)
        dense = None
        if mlp is not None:
            dense = DenseMlp(mlp.config, weights.mlp(layer_id, mlp), ops, layer_id)
        if experts is None:
            yield dense
        elif experts.is_beside_mlp:
            assert dense is not None, "it has one beside them"
            yield MlpBesideExperts(
                experts, config.norm.eps, dense, weights.reader, layer_id, ops.linears, maker
            )
        else:
            yield ExpertMlp(experts, dense, weights, layer_id, ops, maker)


def attention_layers(config: DecoderConfig, weights: DecoderWeights) -> Sequence[AttentionLayer]:
    """With sinks, where it has some: then all layers attend."""
    if not config.has_sinks:
        return config.attention_layers
    return tuple(
        layer
        if config.has_sinks_in_windows_alone and layer.window is None
        else replace(layer, sinks=weights.sinks(layer_id))
        for layer_id, layer in enumerate(config.attention_layers)
    )


def make_norm(config: DecoderConfig, weights: NormWeights | None, ops: LayerOps) -> Norm:
    """None: there is none at this place."""
    if weights is None:
        return NoNorm()
    if config.norm.is_plain:
        return RmsNorm(weights.weight, config.norm.eps, ops.add_rms_norm)
    return FloatNorm(config.norm, weights)


def make_head_norm(
    config: DecoderConfig,
    layer: AttentionLayer,
    weights: AttentionWeights,
    ops: LayerOps,
    *,
    rotates: bool,
) -> HeadNorm | None:
    """None: queries and keys are attended to as they are projected."""
    norm = config.head_norm
    if norm is None or (norm.is_of_rotated and not rotates):
        return None
    weight, bias = weights.head_norm, weights.head_norm_bias
    return HeadNorm(norm, config.norm, weight, bias, layer.num_heads, ops.mean)
