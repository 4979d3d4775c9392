"""What models/decoder.py computes, told by data: families/ reads it from config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, count
from typing import Self

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.latent.latent_config import LatentConfig
from worker.engine.models.layer_config import (
    LLAMA_MLP,
    LLAMA_PLACES,
    AltupConfig,
    HeadNormConfig,
    LayerInputsConfig,
    LayerMlp,
    MlpConfig,
    MtpLayout,
    NormConfig,
    NormPlaces,
    QueryGrowth,
    SharedBlocksConfig,
    activation,
)
from worker.engine.models.model_config import (
    ConfigFile,
    ModelConfig,
    NotFused,
    is_classifier,
    token_ids_of,
)
from worker.engine.models.recurrent.recurrent_config import RecurrentConfig
from worker.engine.models.rope_config import RopeConfig, rope_config

QKV_PARTS = ("q_proj", "k_proj", "v_proj")
SHARED_PROJECTIONS = (
    *(f"self_attn.{each}" for each in (*QKV_PARTS, "o_proj")),
    *(f"feed_forward.{each}" for each in ("gate_up_proj", "down_proj")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors of a decoder's streams.

    A norm takes no heed of the length of what it is given. So `residual`, with which each layer
    multiplies all that it adds, is left out, and everything else, the norms' epsilon too, is
    divided by it.
    """

    embedding: float = 1.0
    is_embedding_rounded: bool = False  # to the dtype of the weights, as the model was trained
    residual: float = 1.0
    logits_divisor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightScale:
    """What a projection is multiplied with when it is read: it needs no factor when it runs."""

    module: str  # the end of its name
    input: float = 1.0  # of what it is given, so not of its bias
    outputs: tuple[tuple[int, float], ...] = ()  # in order: how many, and their factor; (): none


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A decoder of attention and MLP, layer by layer.

    `attention_layers` and `layer_ropes` are of the layers that attend, `state_layers` of those that
    keep a state: some do both.
    """

    intermediate_size: int
    mlp_sizes: tuple[int, ...] = ()  # by layer; (): all have intermediate_size
    num_layers: int
    num_heads: int  # as the next two: of a layer that attends, where all are alike
    num_kv_heads: int
    head_dim: int  # with latents: of what is rotated
    norm: NormConfig
    norm_places: NormPlaces = LLAMA_PLACES
    attention_norm_places: NormPlaces | None = None  # of layers that attend; None: the same
    expert_norm_places: NormPlaces | None = None  # of layers with experts; None: the same
    # By layer: what stays beside mixer and MLP is what each is given, times these; (): the stream
    kept_inputs: tuple[tuple[float, float], ...] = ()
    is_parallel: bool = False  # the MLP is given the stream that attention is given
    rope: RopeConfig  # in whose order heads are kept
    layer_ropes: tuple[RopeConfig | None, ...]  # None: the layer does not rotate
    query_growth: QueryGrowth | None = None
    # Embeddings of positions are added to those of tokens; this many come before the first
    # position's. None: there are none.
    position_offset: int | None = None
    norms_embeddings: bool = False  # with the last norm, which has no weights
    keys_are_values: tuple[bool, ...] = ()  # by layer that attends: before norm and rotation
    attends: tuple[bool, ...] = ()  # by layer; (): all do
    recurrent: tuple[RecurrentConfig | None, ...] = ()  # by layer; None, (): none keeps a state
    shared_blocks: SharedBlocksConfig | None = None  # in which all attention is
    has_mlp: tuple[bool, ...] = ()  # by layer; (): all have; without, or with it alone: one norm
    latent: LatentConfig | None = None  # of the layers that attend; None: they keep heads
    head_norm: HeadNormConfig | None = None
    experts: tuple[ExpertsConfig | None, ...] = ()  # by layer; None: it has none; (): none has
    has_attention_gate: bool = False  # beside each query: what attention gives is multiplied by
    has_sinks: bool = False  # of attention, one for each head
    has_sinks_in_windows_alone: bool = False  # other layers have none
    value_dim: int | None = None  # of a head, as it is stored: less than keys have; None: as much
    has_qkv_bias: bool
    has_output_bias: bool  # of the attention's output projection
    has_mlp_bias: bool
    has_tied_embeddings: bool
    has_head_bias: bool = False
    # Modules of queries, keys and values: three, or one; a fourth one has gates of attention, which
    # else lie behind their queries.
    stored_qkv: tuple[str, ...] = QKV_PARTS
    # Of one: each head of keys and values has its queries before it.
    is_qkv_by_head: bool = False
    is_stored_transposed: bool = False  # matrices of layers: [in_features, out_features]
    mlp: MlpConfig = LLAMA_MLP
    embedding_scale: float = 1.0  # what an embedding is multiplied with
    is_embedding_scale_rounded: bool = False
    logits_divisor: float = 1.0
    stored_names: tuple[tuple[str, str], ...] = ()  # parts of a tensor's name: ours, and theirs
    weight_scales: tuple[WeightScale, ...] = ()
    layer_inputs: LayerInputsConfig | None = None
    altup: AltupConfig | None = None  # None: there is one stream
    gate_cuts: tuple[float | None, ...] = ()  # by layer, of MLPs; (): as `mlp` has it
    has_layer_scales: bool = False  # with which each layer multiplies the stream when it is done
    qkv_bound: float | None = None  # queries, keys and values lie within it, as projected
    logits_soft_cap: float | None = None  # a logit becomes soft_cap * tanh(logit / soft_cap)
    # Of what guesses: where checkpoints of the family have it, if they do. None: they never do.
    mtp: MtpLayout | None = None

    def within(self, max_context_len: int | None) -> Self:
        """Without a growth of queries that begins behind the longest text: before, they are
        multiplied with 1.
        """
        growth = self.query_growth
        if growth is None or growth.begins_at < (max_context_len or self.max_context_len):
            return self
        return replace(self, query_growth=None)

    @property
    def has_table_for_head(self) -> bool:
        """Whether its embeddings are multiplied for logits."""
        is_tied = self.has_tied_embeddings or not self.has_head
        return self.ends_text and is_tied and not is_classifier(self.architecture)

    def embedding_factor(self, dtype: torch.dtype) -> float:
        """What an embedding is multiplied with, where weights are of `dtype`."""
        if not self.is_embedding_scale_rounded:
            return self.embedding_scale
        return float(torch.tensor(self.embedding_scale, dtype=dtype))

    @property
    def num_positions(self) -> int:
        """The positions for which it has embeddings."""
        return self.max_context_len + (self.position_offset or 0)

    @property
    def num_projection_values(self) -> int:
        """The values of all layers' matrices: without embeddings, head, norms and biases."""
        mlp_size = self.mlp.num_projections * self.hidden_size
        experts_size = sum(each.num_projection_values for each in self.experts if each)
        dense_sizes = [
            self.mlp_size_of(layer_id)
            for layer_id, experts in enumerate(self.experts or (None,) * self.num_layers)
            if (experts is None or experts.is_beside_mlp)
            and (not self.has_mlp or self.has_mlp[layer_id])
        ]
        recurrent_size = sum(each.num_projection_values for each in self.recurrent if each)
        attention_size = self._shared_size
        if attention_size is None:
            attention_size = sum(map(self._attention_size, self.attention_layers))
        mixers_size = attention_size + recurrent_size
        inputs = self.layer_inputs
        inputs_size = 0 if inputs is None else 3 * self.num_layers * inputs.size * self.hidden_size
        inputs_size += self._streams_size
        return mixers_size + sum(dense_sizes) * mlp_size + experts_size + inputs_size

    @property
    def _shared_size(self) -> int | None:
        """The values of blocks that layers share, and of what each layer adds to them."""
        shared, size = self.shared_blocks, self.hidden_size
        if shared is None:
            return None
        up_size = sum(shared.mlp.up_sizes(self.intermediate_size))
        queries_size, keys_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        block_size = size * (3 * queries_size + 4 * keys_size + up_size + self.intermediate_size)
        rank = shared.adapter_rank
        own_size = size * size + rank * (size + up_size)
        if shared.adapts_attention:
            own_size += rank * (6 * size + queries_size + 2 * keys_size)
        return shared.num_blocks * block_size + len(shared.layer_ids) * own_size

    @property
    def _streams_size(self) -> int:
        """The values of what makes streams beside the first, and of what is beside attention."""
        altup, size = self.altup, self.hidden_size
        if altup is None:
            return 0
        makers_size = 2 * (altup.num_streams - 1) * size * size
        return makers_size + 2 * self.num_layers * altup.laurel_rank * size

    def _attention_size(self, layer: AttentionLayer) -> int:
        if self.latent is not None:
            is_indexer = layer.num_chosen is not None
            latent = self.latent
            return latent.num_indexer_values if is_indexer else latent.num_projection_values
        num_gates = layer.num_heads if self.has_attention_gate else 0
        num_kept = 2 * layer.num_kv_heads if layer.kv_layer_id is None else 0
        return self.hidden_size * layer.head_dim * (2 * layer.num_heads + num_kept + num_gates)

    @property
    def has_gates_apart(self) -> bool:
        """Whether the gates of attention are in a module of their own."""
        return len(self.stored_qkv) > len(QKV_PARTS)

    @property
    def has_gates_behind_queries(self) -> bool:
        """Whether each gate of attention lies behind the queries of its head."""
        return self.has_attention_gate and not self.has_gates_apart

    def has_keys_as_values(self, attention_id: int) -> bool:
        """Whether a layer that attends takes its keys, as they are projected, for values, too."""
        return bool(self.keys_are_values) and self.keys_are_values[attention_id]

    def mlp_size_of(self, layer_id: int) -> int:
        """The intermediate size of one without experts."""
        return self.mlp_sizes[layer_id] if self.mlp_sizes else self.intermediate_size

    @property
    def attention_ids(self) -> tuple[int | None, ...]:
        """The place of each layer among those that attend; None: it does not."""
        ids = count()
        attends = self.attends or (True,) * self.num_layers
        return tuple(next(ids) if each else None for each in attends)

    def mlp_of(self, layer_id: int) -> LayerMlp | None:
        """None: its tokens go through experts of their own alone, or it has a mixer alone."""
        experts = self.experts[layer_id] if self.experts else None
        if experts is not None and not experts.is_beside_mlp:
            block = f"mlp.{experts.shared_name}"
            shared = LayerMlp(experts.shared_mlp, experts.shared_size, block, has_bias=False)
            return shared if experts.shared_size else None
        if self.has_mlp and not self.has_mlp[layer_id]:
            return None
        mlp = self.mlp
        if self.gate_cuts:
            mlp = replace(mlp, gate_cut=self.gate_cuts[layer_id])
        return LayerMlp(mlp, self.mlp_size_of(layer_id), "mlp", self.has_mlp_bias)

    def norm_places_of(self, layer_id: int) -> NormPlaces:
        if self.expert_norm_places is not None and self.experts and self.experts[layer_id]:
            return self.expert_norm_places
        if self.attention_norm_places is None or self.attention_ids[layer_id] is None:
            return self.norm_places
        return self.attention_norm_places

    @property
    def has_head(self) -> bool:
        """`LlamaModel`, for embeddings alone, has none."""
        return not self.architecture.endswith("Model") or self.architecture.endswith("LMHeadModel")

    @property
    def has_own_head(self) -> bool:
        """Whether it has a head of as many rows as there are tokens, beside the embeddings."""
        is_of_tokens = self.has_head and not is_classifier(self.architecture)
        return is_of_tokens and not self.has_tied_embeddings

    @property
    def head_name(self) -> str | None:
        """The tensor that is multiplied for logits of tokens; None: there are none."""
        if not self.has_head or is_classifier(self.architecture):
            return None
        return "model.embed_tokens.weight" if self.has_tied_embeddings else "lm_head.weight"

    @property
    def has_several_shapes(self) -> bool:
        """Whether layers differ in the sizes of their heads or MLPs, or see keys of others."""
        heads = (self.num_heads, self.num_kv_heads, self.head_dim)
        return bool(self.mlp_sizes or any(self.keys_are_values)) or (
            self.latent is None
            and any(
                (layer.num_heads, layer.num_kv_heads, layer.head_dim) != heads
                or layer.kv_layer_id is not None
                for layer in self.attention_layers
            )
        )

    @property
    def beyond_ranks(self) -> str | None:
        """The first thing that is not divided among GPUs."""
        head_norm = self.head_norm
        is_of_all = head_norm is not None and head_norm.scope == "whole"
        has = {
            "a state beside keys and values": bool(self.recurrent),
            "its choice of positions": self.latent is not None and self.latent.indexer is not None,
            "its streams beside each other": self.altup is not None,
            "its experts beside the MLP": any(each and each.is_beside_mlp for each in self.experts),
            "its gate of attention": self.has_attention_gate,
            "its values, shorter than keys,": self.value_dim is not None,
            "its norm of all queries at once": is_of_all and self.norm.kind != "rms",
        }
        return next((name for name, is_so in has.items() if is_so), None)

    @property
    def beyond_llama(self) -> str | None:
        """The first thing that Llama, Qwen 3, and their mixtures of experts have not."""
        head_norm = self.head_norm
        has = {
            "its gate of attention": self.has_attention_gate,
            "its kind of norm": not self.norm.is_plain,
            "its shapes of layers": self.has_several_shapes,
            "its inputs of each layer": self.has_layer_scales,
            "its growth of queries": self.query_growth is not None,
            "its embeddings of positions": self.position_offset is not None,
            "its norm of embeddings": self.norms_embeddings,
            "its bound of queries, keys and values": self.qkv_bound is not None,
            "its bias of the head": self.has_head_bias,
            "its order of weights": self.is_qkv_by_head or self.is_stored_transposed,
            "its chunks of attention": any(layer.chunk for layer in self.attention_layers),
            "its places of norms": self.is_parallel or self.norm_places != LLAMA_PLACES,
            "its norm of queries and keys": head_norm is not None and not head_norm.is_plain,
            "its kind of MLP": not self.mlp.is_plain,
            "its rotation by layer": {*self.layer_ropes} != {self.rope},
            "soft caps": self.logits_soft_cap is not None
            or any(layer.soft_cap is not None for layer in self.attention_layers),
            "its sinks of attention": self.has_sinks,
        }
        return self.beyond_native or next((name for name, is_so in has.items() if is_so), None)

    @property
    def projection_names(self) -> frozenset[str]:
        """Of the weights of its layers' projections, in our words."""
        names = set[str]()
        for layer_id in range(self.num_layers):
            layer = f"model.layers.{layer_id}"
            attention = (*self.stored_qkv, "o_proj")
            if self.latent is not None:
                attention = self.latent.projection_names
            modules = [f"self_attn.{each}" for each in attention]
            if self.recurrent and (recurrent := self.recurrent[layer_id]) is not None:
                modules += [f"recurrent.{each}" for each in recurrent.projection_names]
            if self.shared_blocks is not None:
                modules += [f"shared_transformer.{each}" for each in SHARED_PROJECTIONS]
                modules.append("linear")
            if self.layer_inputs is not None:
                modules += ["per_layer_input_gate", "per_layer_projection"]
            if self.altup is not None:
                modules += ["laurel.linear_left", "laurel.linear_right"]
            if (mlp := self.mlp_of(layer_id)) is not None:
                modules += [f"{mlp.block}.{each}" for each in (*mlp.config.up, mlp.config.down)]
            names |= {f"{layer}.{module}.weight" for module in modules}
        if self.layer_inputs is not None:
            names.add("model.per_layer_model_projection.weight")
        if self.altup is not None:
            for idx in range(self.altup.num_streams - 1):
                for each in ("altup_projections", "altup_unembed_projections"):
                    names.add(f"model.{each}.{idx}.weight")
        return frozenset(names)

    @property
    def num_coded_projection_values(self) -> int:
        """The values of those of `projection_names`."""
        num_values = self.num_projection_values
        if self.latent is not None:
            num_values -= self.num_layers * self.latent.num_absorbed_values
        return num_values

    def may_be_coded(self, name: str) -> bool:
        """Whether a projection of a name in our words can be multiplied as it is stored: not what
        is absorbed, multiplied with factors, or filled up with zeros.
        """
        module = name.removesuffix(".weight")
        is_absorbed = self.latent is not None and module.endswith("kv_b_proj")
        is_scaled = any(module.endswith(each.module) for each in self.weight_scales)
        is_filled_up = self.value_dim is not None and ".self_attn." in module
        return not (is_absorbed or is_scaled or is_filled_up)

    @property
    def beyond_codes(self) -> str | None:
        """What leaves most projections in numbers; None: nothing does."""
        if self.hidden_size % 2:
            return "its odd size"
        return "its factors of weights" if self.weight_scales else None

    @property
    def beyond_native(self) -> str | None:
        """The first thing that our C++ does not compute."""
        head_norm = self.head_norm
        has = {
            "a state beside keys and values": bool(self.recurrent),
            "its latent of keys and values": self.latent is not None,
            "its kind of experts": any(each and not each.is_native for each in self.experts),
            "its inputs of each layer": self.layer_inputs is not None,
            "its streams beside each other": self.altup is not None,
            "its cut of gates": any(each is not None for each in self.gate_cuts),
            "its factors of weights": bool(self.weight_scales),
            "its values, shorter than keys,": self.value_dim is not None,
            "its norm of queries and keys": head_norm is not None and not head_norm.is_native,
            "its kind of MLP": self.mlp.is_learned,
        }
        return next((name for name, is_so in has.items() if is_so), None)


def decoder_config(
    config: ConfigFile,
    *,
    windows: tuple[int | None, ...] | None = None,
    has_attention_bias: bool = False,  # of queries, keys, values, and the output
    has_qkv_bias: bool = False,  # of all but the output
    has_mlp_bias: bool = False,
    head_dim: int | None = None,
    attention_scale: float | None = None,
    soft_cap: float | None = None,
    norm: NormConfig | None = None,
    rope: RopeConfig | None = None,
    mlp: MlpConfig | None = None,
    intermediate_size: int | None = None,
    scales: Scales = Scales(),
) -> DecoderConfig:
    """What all families say in the same words; what else is a family's own, it replaces.

    Without `norm` and `mlp` they are Llama's, with the activation of `hidden_act`; without
    `windows` no layer has one; without `intermediate_size` the file has it. Raises ConfigError.
    """
    mlp = mlp or MlpConfig(activation=activation(config))
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"{config.path}: {num_heads} heads do not share {num_kv_heads} KV heads")
    head_dim = head_dim or config.integer("head_dim", hidden_size // num_heads)
    windows = windows or same_window(config, None)
    max_positions = config.integer("max_position_embeddings")
    rope = rope or rope_config(config)
    _check_pairs(config, rope, head_dim)
    num_guessing = config.integer("num_nextn_predict_layers", 0, least=0)
    guessing = range(len(windows), len(windows) + num_guessing)
    scale = attention_scale or head_dim**-0.5
    return _counted(
        DecoderConfig(
            architecture=config.architecture,
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=intermediate_size or config.integer("intermediate_size"),
            num_layers=len(windows),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            attention_layers=tuple(
                AttentionLayer(num_heads, num_kv_heads, head_dim, scale, window, soft_cap)
                for window in windows
            ),
            num_parameters=0,
            norm=norm or NormConfig(eps=config.number("rms_norm_eps", 1e-6) / scales.residual**2),
            embedding_scale=scales.embedding / scales.residual,
            is_embedding_scale_rounded=scales.is_embedding_rounded,
            logits_divisor=scales.logits_divisor,
            max_context_len=max_positions,
            max_context_limit=rope.max_context_limit(max_positions),
            rope=rope,
            layer_ropes=(rope,) * len(windows),
            has_qkv_bias=has_attention_bias or has_qkv_bias,
            has_output_bias=has_attention_bias,
            has_mlp_bias=has_mlp_bias,
            has_tied_embeddings=config.boolean("tie_word_embeddings", default=False),
            mlp=mlp,
            stored_dtype=str(config.get("dtype", config.get("torch_dtype", "float32"))),
            eos_token_ids=token_ids_of(config, "eos_token_id") or (),
            unread_prefixes=tuple(f"model.layers.{layer_id}." for layer_id in guessing),
            mtp=MtpLayout.behind(len(windows)) if guessing else None,
        )
    )


def _check_pairs(config: ConfigFile, rope: RopeConfig, head_dim: int) -> None:
    num_rotated = rope.num_rotated(head_dim)
    if head_dim % 2 or not 0 < num_rotated <= head_dim:
        raise ConfigError(
            f"{config.path}: {num_rotated} of a head's {head_dim} values are no pairs to rotate"
        )
    if rope.axes and len(rope.axes) != num_rotated // 2:
        raise ConfigError(
            f"{config.path}: 'mrope_section' has {len(rope.axes)} of {num_rotated // 2} pairs"
        )
    for name, factors in (
        ("short_factor", rope.short_factors),
        ("long_factor", rope.long_factors),
    ):
        if rope.kind == "longrope" and len(factors) != num_rotated // 2:
            raise ConfigError(
                f"{config.path}: '{name}' has {len(factors)} numbers for {num_rotated // 2} pairs"
            )


def _counted(model: DecoderConfig) -> DecoderConfig:
    """`model` with its number of parameters, but for norms and biases."""
    num_positions = 0 if model.position_offset is None else model.num_positions
    num_rows = (1 + model.has_own_head) * model.vocab_size + num_positions
    embeddings_size = num_rows * model.hidden_size
    if (inputs := model.layer_inputs) is not None:
        embeddings_size += inputs.vocab_size * model.num_layers * inputs.size
    return replace(model, num_parameters=model.num_projection_values + embeddings_size)


def with_layer_ropes(
    config: ConfigFile, model: DecoderConfig, ropes: Sequence[RopeConfig | None]
) -> DecoderConfig:
    """`model` with a rope, or none, for each layer. Raises NotFused where no layer has one."""
    if not any(ropes):
        raise NotFused(f"{config.path}: it takes no heed of the positions of its tokens")
    return replace(model, layer_ropes=tuple(ropes))


def with_positions(model: DecoderConfig, offset: int = 0) -> DecoderConfig:
    """`model` with embeddings of positions; its layers do not rotate."""
    layer_ropes = (None,) * len(model.layer_ropes)
    return _counted(replace(model, position_offset=offset, layer_ropes=layer_ropes))


def with_attention_layers(
    config: ConfigFile, model: DecoderConfig, layers: Sequence[AttentionLayer]
) -> DecoderConfig:
    """`model` with these, of which one may be unlike another. Raises ConfigError."""
    for layer_id, (layer, rope) in enumerate(zip(layers, model.layer_ropes, strict=True)):
        if layer.num_heads % layer.num_kv_heads:
            heads = f"{layer.num_heads} heads do not share {layer.num_kv_heads} KV heads"
            raise ConfigError(f"{config.path}: {heads}")
        source = layer if layer.kv_layer_id is None else layers[layer.kv_layer_id]
        if (source.num_kv_heads, source.head_dim) != (layer.num_kv_heads, layer.head_dim):
            raise ConfigError(
                f"{config.path}: layer {layer_id} would see keys of layer {layer.kv_layer_id}, "
                "which are of another shape"
            )
        if rope is not None:
            _check_pairs(config, rope, layer.head_dim)
    # Keys and values that some checkpoints have for layers that see those of others.
    unread = tuple(
        f"model.{text}layers.{layer_id}.self_attn.{name}"
        for text in ("", "language_model.")
        for layer_id, layer in enumerate(layers)
        for name in ("k_", "v_")
        if layer.kv_layer_id is not None
    )
    unread_prefixes = (*model.unread_prefixes, *unread)
    return _counted(replace(model, attention_layers=tuple(layers), unread_prefixes=unread_prefixes))


def with_latents(model: DecoderConfig, latent: LatentConfig) -> DecoderConfig:
    """`model` with this attention in all layers; behind them come the indexers, if any.

    Where yarn has told `mscale_all_dim`, scores grow by its square, as DeepSeek's own code has it.
    """
    scale = latent.head_dim**-0.5
    if model.rope.mscale_all_dim:
        scale *= model.rope.growth_by(model.rope.mscale_all_dim) ** 2
    layer = latent.attention_layer(scale)
    layers, num_layers, indexer = [layer] * model.num_layers, model.num_layers, latent.indexer
    if indexer is not None:
        turns = map(indexer.turn_of, range(num_layers))
        layers = [replace(layer, indexer_id=num_layers + turn) for turn in turns]
        layers += [indexer.attention_layer] * len(indexer.layer_ids)
    return _counted(
        replace(
            model,
            latent=latent,
            num_kv_heads=layer.num_kv_heads,
            attention_layers=tuple(layers),
            layer_ropes=(model.rope,) * len(layers),
        )
    )


def with_experts(
    config: ConfigFile,
    model: DecoderConfig,
    experts: ExpertsConfig,
    has_experts: Sequence[bool],
) -> DecoderConfig:
    """`model` with them, of its activation, in the layers that `has_experts` tells. Raises
    ConfigError.
    """
    if not any(has_experts):
        return model
    mlp, shared_mlp = (
        replace(each, activation=model.mlp.activation) for each in (experts.mlp, experts.shared_mlp)
    )
    experts = replace(experts, mlp=mlp, shared_mlp=shared_mlp)
    if experts.obstacle is not None:
        raise ConfigError(f"{config.path}: {experts.obstacle}")
    by_layer = tuple(experts if each else None for each in has_experts)
    num_expert_values = sum(has_experts) * experts.num_coded_values
    return _counted(replace(model, experts=by_layer, num_expert_values=num_expert_values))


def with_recurrent_layers(
    model: DecoderConfig,
    recurrent: Sequence[RecurrentConfig | None],
    attends: Sequence[bool] | None = None,
) -> DecoderConfig:
    """`model`, all of whose layers attend, with these in the place of some, or of all; with
    `attends`, beside those that go on to attend.
    """
    attends = [each is None for each in recurrent] if attends is None else attends
    if not any(recurrent):
        return model
    return _counted(
        replace(
            model,
            attends=tuple(attends),
            recurrent=tuple(recurrent),
            attention_layers=tuple(compress(model.attention_layers, attends)),
            layer_ropes=tuple(compress(model.layer_ropes, attends)),
            state_layers=tuple(each.state_layer for each in recurrent if each),
        )
    )


def same_window(config: ConfigFile, window: int | None) -> tuple[int | None, ...]:
    """The same for all layers."""
    return (window,) * config.integer("num_hidden_layers")


def windows_of_types(
    config: ConfigFile, layer_types: object, window: int | None
) -> tuple[int | None, ...]:
    """`layer_types` says which layers have the window. Raises ConfigError."""
    num_layers = config.integer("num_hidden_layers")
    known = {"full_attention": None, "sliding_attention": window}
    return tuple(config.by_layer("layer_types", layer_types, known, num_layers))


def keys_of_earlier_layers(config: ConfigFile, types: list[str]) -> list[int | None]:
    """By layer, whose keys and values it sees: each of the last `num_kv_shared_layers` those of the
    last layer of its type before them; None: its own. Raises ConfigError.
    """
    num_sharing = config.integer("num_kv_shared_layers", 0, least=0)
    own_types = types[: len(types) - num_sharing]
    if not {*types} <= {*own_types}:
        raise ConfigError(
            f"{config.path}: 'num_kv_shared_layers' {num_sharing} leaves no keys for layers of "
            f"some of {types}"
        )
    last_of_type = {each: layer_id for layer_id, each in enumerate(own_types)}
    return [None] * len(own_types) + [last_of_type[each] for each in types[len(own_types) :]]
