"""The tensors of a decoder by their names in checkpoints; what is multiplied together is joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Self

import torch

from worker.engine.formats.scaled_weight import ScaledWeight, join_rows
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_config import HeadNormConfig, LayerMlp
from worker.engine.models.layer_ops import Xielu, softplus
from worker.engine.models.loader import CodeReader, ScalingReader, WeightReader
from worker.engine.models.model_config import is_classifier
from worker.engine.models.norms import NormWeights
from worker.engine.models.renaming_reader import RenamingReader
from worker.engine.models.rotary import head_order


class Projection(NamedTuple):
    """The weight of a linear layer, and its bias."""

    weight: torch.Tensor | ScaledWeight  # [out_features, in_features]
    bias: torch.Tensor | None  # [out_features]

    def dense(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias, where weights were read without codes."""
        assert isinstance(self.weight, torch.Tensor)
        return self.weight, self.bias

    def with_rows(self, rows: torch.Tensor) -> Self:
        """Some of them, or in another order; [num_rows] int64 of the host."""
        weight, bias = self
        if isinstance(weight, torch.Tensor):
            weight = weight[rows.to(weight.device)]
        else:
            weight = weight.with_rows(rows)
        return self._replace(
            weight=weight, bias=None if bias is None else bias[rows.to(bias.device)]
        )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """Attention of one layer."""

    # To the heads of queries, then keys, then values, then any gates. Where keys are values, too,
    # it has them once; where a layer sees another one's, neither.
    qkv: Projection
    head_norm: torch.Tensor | None  # [num_heads + num_kv_heads, head_dim]; None: without weights
    head_norm_bias: torch.Tensor | None  # the same
    output: Projection


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """Norms of one layer."""

    before_attention: NormWeights | None
    after_attention: NormWeights | None
    before_mlp: NormWeights | None
    after_mlp: NormWeights | None


@dataclass(frozen=True, slots=True, eq=False)
class MlpWeights:
    """The weights of the MLP that every token of a layer goes through."""

    gate_up: Projection  # gates, then what they are multiplied with; or what is activated alone
    down: Projection
    curve: Xielu | None  # None: it has the activation that the configuration tells


class DecoderWeights:
    """Reads them, each when it is asked for.

    From `codes` quantised projections are read as they are stored, for who multiplies codes. With
    `share`, a reader of what is read here under our names and as it is multiplied, a rank reads
    what the configuration has of its own.
    """

    def __init__(
        self,
        config: DecoderConfig,
        checkpoint: WeightReader,
        codes: CodeReader | None = None,
        share: Callable[[WeightReader], WeightReader] | None = None,
    ) -> None:
        self._config = config
        self._checkpoint: WeightReader = RenamingReader(checkpoint, config.stored_names)
        if config.weight_scales:
            self._checkpoint = ScalingReader(self._checkpoint, config.weight_scales)
        if share is not None:
            self._checkpoint = share(self._checkpoint)
        self._codes = codes

    def embeddings(self) -> torch.Tensor:
        """[vocab_size, hidden_size]."""
        config = self._config
        return self._read("model.embed_tokens.weight", config.vocab_size, config.hidden_size)

    def positions(self) -> torch.Tensor:
        """[num_positions, hidden_size], where it has them."""
        config = self._config
        return self._read("model.embed_positions.weight", config.num_positions, config.hidden_size)

    def stored_embeddings(self) -> torch.Tensor | ScaledWeight:
        """`embeddings`, in codes where they are stored so."""
        codes = self._codes_of_tokens("model.embed_tokens.weight")
        return self.embeddings() if codes is None else codes

    def stored_head(self) -> torch.Tensor | ScaledWeight | None:
        """[num_outputs, hidden_size], in codes where it is stored so; None: embeddings are taken
        for it.
        """
        config = self._config
        if is_classifier(config.architecture):
            return self._read("score.weight", config.num_outputs, config.hidden_size)
        if config.has_table_for_head:
            return None
        codes = self._codes_of_tokens(name := "lm_head.weight")
        return self._read(name, config.vocab_size, config.hidden_size) if codes is None else codes

    def head_bias(self) -> torch.Tensor | None:
        """[vocab_size]."""
        config = self._config
        return self._read("lm_head.bias", config.vocab_size) if config.has_head_bias else None

    def norm(self) -> NormWeights:
        """The last one."""
        return self._norm("model.", "norm")

    def attention(self, layer_id: int) -> AttentionWeights:
        """Reads the weights of a layer that attends."""
        config = self._config
        hidden_size = config.hidden_size
        attention_id = config.attention_ids[layer_id]
        assert attention_id is not None, "it attends"
        layer = config.attention_layers[attention_id]
        attention_size = layer.num_heads * layer.head_dim
        sizes, modules = [attention_size], config.stored_qkv
        if config.has_gates_behind_queries:
            sizes = [2 * attention_size]
        if layer.kv_layer_id is None:
            num_kept = 1 if config.has_keys_as_values(attention_id) else 2
            sizes += [layer.num_kv_heads * layer.head_dim] * num_kept
        value_size, value_dim = attention_size, config.value_dim
        if value_dim is not None:
            sizes[2], value_size = layer.num_kv_heads * value_dim, layer.num_heads * value_dim
        if config.has_gates_apart:
            sizes.append(attention_size)
        if len(modules) > 1:
            modules = modules[: len(sizes)]
        prefix = f"model.layers.{layer_id}.self_attn."
        qkv = self.projection(
            prefix,
            stored_sizes(modules, tuple(sizes)),
            hidden_size,
            has_bias=config.has_qkv_bias,
        )
        head_norm = self._head_norm(prefix, layer, "weight")
        head_norm_bias = self._head_norm(prefix, layer, "bias")
        output = self.projection(
            prefix, {"o_proj": hidden_size}, value_size, has_bias=config.has_output_bias
        )
        if value_dim is not None:
            qkv, output = _with_long_values(layer, qkv, output, sizes[2])
        return AttentionWeights(
            qkv=_ordered(config, layer, qkv),
            head_norm=head_norm,
            head_norm_bias=head_norm_bias,
            output=output,
        )

    def layer(self, layer_id: int) -> LayerWeights:
        places = self._config.norm_places_of(layer_id)
        layer = f"model.layers.{layer_id}."
        return LayerWeights(
            before_attention=self._norm_at(layer, places.before_attention),
            after_attention=self._norm_at(layer, places.after_attention),
            before_mlp=self._norm_at(layer, places.before_mlp),
            after_mlp=self._norm_at(layer, places.after_mlp),
        )

    def mlp(self, layer_id: int, mlp: LayerMlp) -> MlpWeights:
        """`mlp`: as the configuration has it of this layer."""
        config, intermediate_size, block, has_bias = mlp
        hidden_size = self._config.hidden_size
        up, down = config.up_sizes(intermediate_size), {config.down: hidden_size}
        prefix = f"model.layers.{layer_id}.{block}."
        return MlpWeights(
            gate_up=self.projection(
                prefix, stored_sizes(config.up, up), hidden_size, has_bias=has_bias
            ),
            down=self.projection(prefix, down, intermediate_size, has_bias=has_bias),
            curve=self._curve(f"{prefix}act_fn.") if config.is_learned else None,
        )

    def _curve(self, prefix: str) -> Xielu:
        """Of its alphas it has what their softplus is taken of."""
        read = partial(self._checkpoint.read_as, torch.float32)
        slope, bound = read(f"{prefix}beta"), read(f"{prefix}eps")
        rise, fall = (softplus(read(f"{prefix}alpha_{each}", 1)) for each in "pn")
        return Xielu(float(rise), float(slope + fall), float(slope), float(bound))

    def projection(
        self, prefix: str, sizes: Mapping[str, int], in_features: int, *, has_bias: bool = False
    ) -> Projection:
        """One layer of several, each with its number of output features: in codes where all are
        stored in the same, and somebody multiplies such.
        """
        shapes = {f"{prefix}{name}.weight": (size, in_features) for name, size in sizes.items()}
        weight: torch.Tensor | ScaledWeight | None = self._join_codes(shapes)
        if weight is None:
            parts = [self._matrix(name, *shape) for name, shape in shapes.items()]
            weight = torch.cat(parts) if len(parts) > 1 else parts[0]
        if not has_bias:
            return Projection(weight, None)
        bias = torch.cat([self._read(f"{prefix}{name}.bias", size) for name, size in sizes.items()])
        return Projection(weight, bias)

    def sinks(self, layer_id: int) -> torch.Tensor:
        """[num_heads] float32, of a layer that attends with them."""
        name = f"model.layers.{layer_id}.self_attn.sinks"
        return self._checkpoint.read_as(torch.float32, name, self._config.num_heads)

    def _norm_at(self, layer: str, module: str | None) -> NormWeights | None:
        return None if module is None else self._norm(layer, module)

    def _norm(self, prefix: str, module: str) -> NormWeights:
        size = self._config.hidden_size
        norm, name = self._config.norm, f"{prefix}{module}"
        return NormWeights(
            self._read(f"{name}.weight", size) if norm.has_weight else torch.empty(0),
            self._read(f"{name}.bias", size) if norm.has_bias else None,
        )

    def _head_norm(
        self, prefix: str, layer: AttentionLayer, part: Literal["weight", "bias"]
    ) -> torch.Tensor | None:
        """With the values of each head in the order of their pairs."""
        norm, head_dim = self._config.head_norm, layer.head_dim
        if norm is None or norm.scope == "bare" or (part == "bias" and not norm.has_bias):
            return None
        nums_heads = [layer.num_heads]
        if layer.kv_layer_id is None:
            nums_heads.append(layer.num_kv_heads)
        weight = torch.cat(
            [
                self._weights_of_heads(norm, prefix + module, part, num_heads, head_dim)
                for module, num_heads in zip(norm.modules, nums_heads, strict=False)
            ]
        )
        order = head_order(self._config.rope, head_dim)
        return weight if order is None else weight[:, order.to(weight.device)]

    def _weights_of_heads(
        self, norm: HeadNormConfig, module: str, part: str, num_heads: int, head_dim: int
    ) -> torch.Tensor:
        """[num_heads, head_dim]."""
        match norm.scope:
            case "bare":
                raise AssertionError("it has no weights")
            case "shared":
                return self._read(f"{module}.{part}", head_dim).expand(num_heads, -1)
            case "own":
                return self._read(f"{module}.{part}", num_heads, head_dim)
            case "whole":
                return self._read(f"{module}.{part}", num_heads * head_dim).view(num_heads, -1)
            case "modules":
                names = [f"{module}.norms.{idx}.{part}" for idx in range(num_heads)]
                return torch.stack([self._read(name, head_dim) for name in names])

    def _matrix(self, name: str, out_features: int, in_features: int) -> torch.Tensor:
        if self._config.is_stored_transposed:
            return self._read(name, in_features, out_features).T.contiguous()
        return self._read(name, out_features, in_features)

    def _join_codes(self, shapes: dict[str, tuple[int, int]]) -> ScaledWeight | None:
        """None where they are not all stored in the same codes, or nobody multiplies them."""
        if self._codes is None:
            return None
        parts = []
        for name, shape in shapes.items():
            if shape[1] % 2 or not self._config.may_be_coded(name):
                return None
            is_turned = self._config.is_stored_transposed
            part = self._codes.read_codes(name, *(reversed(shape) if is_turned else shape))
            if part is None or part.is_turned != is_turned:
                return None
            parts.append(replace(part, is_turned=False))
        return join_rows(parts)

    def _codes_of_tokens(self, name: str) -> ScaledWeight | None:
        """Of a row for each token; None where it is not in codes, or they are not asked for."""
        if self._codes is None or self._config.hidden_size % 2:
            return None
        return self._codes.read_codes(name, self._config.vocab_size, self._config.hidden_size)

    @property
    def reader(self) -> WeightReader:
        """The reader of what else a layer has."""
        return self._checkpoint

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        return self._checkpoint.read(name, *shape)


def stored_sizes(modules: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, int]:
    """Output features by module; where there is but one, it has those of all parts."""
    if len(modules) == 1:
        return {modules[0]: sum(sizes)}
    return dict(zip(modules, sizes, strict=True))


def _with_long_values(
    layer: AttentionLayer, qkv: Projection, output: Projection, num_values: int
) -> tuple[Projection, Projection]:
    """With zeros behind each head's values, which are the last `num_values` of `qkv`, and for them
    in `output`, so that they are as long as keys. Of no codes, and without biases.
    """
    (weight, _), (output_weight, _) = qkv.dense(), output.dense()
    values = _with_zeros(weight[-num_values:], layer.num_kv_heads, layer.head_dim)
    columns = _with_zeros(output_weight.T, layer.num_heads, layer.head_dim)
    return (
        Projection(torch.cat([weight[:-num_values], values]), None),
        Projection(columns.T.contiguous(), None),
    )


def _with_zeros(rows: torch.Tensor, num_heads: int, head_dim: int) -> torch.Tensor:
    """[num_heads * value_dim, size] -> [num_heads * head_dim, size]."""
    heads = rows.reshape(num_heads, -1, rows.shape[1])
    missing = (0, 0, 0, head_dim - heads.shape[1])
    return torch.nn.functional.pad(heads, missing).flatten(0, 1)


def _ordered(config: DecoderConfig, layer: AttentionLayer, qkv: Projection) -> Projection:
    """With the values of each head of queries and keys in the order of their pairs."""
    head_dim, order = layer.head_dim, head_order(config.rope, layer.head_dim)
    if order is None and not config.has_gates_behind_queries and not config.is_qkv_by_head:
        return qkv
    assert layer.kv_layer_id is None, "its keys are no other layer's"
    assert not any(config.keys_are_values), "nor values"
    num_rotated = layer.num_heads + layer.num_kv_heads
    heads = stored_heads(config, layer)[:, None] * head_dim
    by_head = heads + torch.arange(head_dim)
    if order is not None:
        by_head[:num_rotated] = heads[:num_rotated] + order
    return qkv.with_rows(by_head.flatten())


def stored_heads(config: DecoderConfig, layer: AttentionLayer) -> torch.Tensor:
    """Where the heads of queries, keys, values and gates are."""
    num_heads, num_kept = layer.num_heads, 2 * layer.num_kv_heads
    if config.is_qkv_by_head:
        by_group = torch.arange(num_heads + num_kept).view(layer.num_kv_heads, -1)
        queries, keys, values = by_group[:, :-2], by_group[:, -2], by_group[:, -1]
        return torch.cat([queries.flatten(), keys, values])
    if config.has_gates_behind_queries:
        queries = 2 * torch.arange(num_heads)
        return torch.cat([queries, 2 * num_heads + torch.arange(num_kept), queries + 1])
    return torch.arange(num_heads + num_kept + num_heads * config.has_gates_apart)
