"""What a decoder layer does between its linears: a seam, and plain torch behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import DenseTable, HeadLinears, Linear, Linears, Table
from worker.engine.models.layer_config import Activation, ClampedGate, MlpConfig
from worker.engine.models.layer_ropes import Angles, LayerRopes
from worker.engine.models.norms import HeadNorm, MeanOfRanks, moments, rms_norm
from worker.engine.models.rotary import rotate

Weight = torch.Tensor | ScaledWeight  # of a matrix; in codes where `DecoderWeights` reads such
MakeProjection = Callable[[Weight, torch.Tensor | None], Linear]  # as LayerOps.projection
MAX_EXPONENT = 20.0  # beyond, a softplus is its argument, as torch has it


class CodedLinears(Protocol):
    """Multiplies weights as they are stored. Its methods raise ConfigError where memory is out."""

    def linear(self, weight: ScaledWeight, bias: torch.Tensor | None) -> Linear:
        """Of a projection: [out_features, in_features], an even number of these; [out_features]."""
        ...

    def head(self, weight: ScaledWeight) -> Linear:
        """[num_outputs, hidden_size]."""
        ...

    def table(self, weight: ScaledWeight) -> Table:
        """[vocab_size, hidden_size]."""
        ...


class LayerOps(Protocol):
    """Made for one model, and for the device that it is on."""

    @property
    def linears(self) -> Linears: ...

    def begin(self, positions: torch.Tensor) -> None:
        """Once a step, before the first layer: [num_tokens] int64, or [3, num_tokens] by axis."""
        ...

    def angles(self, layer_id: int) -> Angles | None:
        """The angles of this step's positions; None: the layer does not rotate."""
        ...

    def query_factors(self, layer_id: int) -> torch.Tensor | None:
        """[num_tokens, 1, 1] float32, of this step's positions; None: queries do not grow."""
        ...

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of the sum, and the sum: [num_tokens, hidden_size] each."""
        ...

    def attend(
        self,
        qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Norms and rotates queries and keys, and attends: [num_tokens, num_heads * head_dim].

        `qkv` may have keys alone, which are the values, too; or, of a layer that has neither of its
        own, queries alone.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[num_tokens, 2 * intermediate_size] -> [num_tokens, intermediate_size]."""
        ...

    def projection(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """`weight` [out_features, in_features], `bias` [out_features]."""
        ...

    def head(self, weight: Weight) -> Linear:
        """To all outputs; `weight` [num_outputs, hidden_size]."""
        ...

    def by_head(self, weights: torch.Tensor) -> Linear:
        """A product of each head: [num_tokens, num_heads, in_features] to out_features.

        `weights` [num_heads, out_features, in_features].
        """
        ...

    def table(self, weight: Weight) -> Table:
        """`weight` [vocab_size, hidden_size]."""
        ...

    def whole(self, summand: torch.Tensor) -> torch.Tensor:
        """What a layer's part gives, of which each rank has computed a summand; it is lost."""
        ...

    @property
    def mean(self) -> MeanOfRanks | None:
        """None: one computes it all."""
        ...


class PlainLayerOps:
    """What is the same in plain torch wherever the model is: all but what attention needs."""

    def __init__(
        self, ropes: LayerRopes, layers: Sequence[AttentionLayer], linears: Linears
    ) -> None:
        self.linears = linears
        self._ropes = ropes
        self._layers = layers

    def begin(self, positions: torch.Tensor) -> None:
        self._ropes.begin(positions)

    def angles(self, layer_id: int) -> Angles | None:
        return self._ropes.angles(layer_id)

    def query_factors(self, layer_id: int) -> torch.Tensor | None:
        return self._ropes.query_factors(layer_id)

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(delta, residual, weight, eps)

    def attend_in_torch(
        self,
        qkv: torch.Tensor,
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """As `LayerOps.attend`: any norm, before or after any rotation."""
        layer, angles = self._layers[layer_id], self.angles(layer_id)
        num_heads, num_kv_heads = layer.num_heads, layer.num_kv_heads
        has_keys = layer.kv_layer_id is None
        heads = qkv[:, : num_heads + num_kv_heads if has_keys else num_heads]
        if norm is not None and not norm.is_after_rope:
            heads = norm.of(heads)
        if angles is not None:
            heads = rotate(heads, *angles)
        if norm is not None and norm.is_after_rope:
            heads = norm.of(heads)
        queries, factors = heads[:, :num_heads], self.query_factors(layer_id)
        if factors is not None:
            queries = (queries * factors).to(qkv.dtype)
        if not has_keys:
            return attention.forward(queries, None, None, layer_id)
        values = qkv[:, -num_kv_heads:]
        if norm is not None:
            values = norm.of_values(values)
        return attention.forward(queries, heads[:, num_heads:], values, layer_id)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_mul(gate_up)

    def projection(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        return self.linears.make(dense(weight), bias)

    def head(self, weight: Weight) -> Linear:
        return self.linears.make(dense(weight), None)

    def table(self, weight: Weight) -> Table:
        return DenseTable(dense(weight), self.head)

    def by_head(self, weights: torch.Tensor) -> Linear:
        return HeadLinears(weights, self.linears)

    def whole(self, summand: torch.Tensor) -> torch.Tensor:
        return summand

    @property
    def mean(self) -> MeanOfRanks | None:
        return None


class TorchLayerOps(PlainLayerOps):
    """On a CPU, with products by somebody else of weights in codes."""

    def __init__(
        self,
        ropes: LayerRopes,
        layers: Sequence[AttentionLayer],
        linears: Linears,
        coded: CodedLinears | None = None,
    ) -> None:
        super().__init__(ropes, layers, linears)
        self._coded = coded

    def projection(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        if isinstance(weight, ScaledWeight) and self._coded is not None:
            return self._coded.linear(weight, bias)
        return super().projection(weight, bias)

    def head(self, weight: Weight) -> Linear:
        if isinstance(weight, ScaledWeight) and self._coded is not None:
            return self._coded.head(weight)
        return super().head(weight)

    def table(self, weight: Weight) -> Table:
        if isinstance(weight, ScaledWeight) and self._coded is not None:
            return self._coded.table(weight)
        return super().table(weight)

    def attend(
        self,
        qkv: torch.Tensor,
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        return self.attend_in_torch(qkv, norm, layer_id, attention)


def dense(weight: Weight) -> torch.Tensor:
    """Of one that was read without codes."""
    assert isinstance(weight, torch.Tensor)
    return weight


def add_rms_norm(
    delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the sum, and the sum: [num_tokens, hidden_size] each."""
    total = residual + delta
    return rms_norm(total, weight, eps), total


def norm_rotate(
    heads: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Queries and keys [num_tokens, num_heads + num_kv_heads, head_dim], rotated.

    `norm` [num_heads + num_kv_heads, head_dim]: weights of a norm of each head, before.
    """
    if norm is not None:
        heads = functional.rms_norm(heads, heads.shape[-1:], None, eps) * norm
    return rotate(heads, *angles)


def mlp_activation(config: MlpConfig, inner: torch.Tensor) -> torch.Tensor:
    """[num_tokens, up_size] -> [num_tokens, intermediate_size]."""
    if not config.is_gated:
        return activate(inner, config.activation)
    gate, up = inner.chunk(2, dim=-1)
    if config.gate_cut is not None:
        gate = _cut(gate.contiguous(), config.gate_cut)
    if config.clamp is not None:
        return clamped(config.clamp, gate.float(), up.float()).to(inner.dtype)
    return activate(gate, config.activation) * up


def clamped(clamp: ClampedGate, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """In float32, a value's bits the same wherever it is, as `activate` has it."""
    gate = gate.clamp(max=clamp.bound)
    up = up.clamp(-clamp.bound, clamp.bound)
    return gate / (1.0 + torch.exp(-clamp.slope * gate)) * (up + 1.0)


def _cut(gate: torch.Tensor, deviations: float) -> torch.Tensor:
    """What of each is above the row's mean by more than so many standard deviations."""
    mean, variance = moments(gate)
    return functional.relu(gate.float() - (mean + variance.sqrt() * deviations)).to(gate.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * intermediate_size] -> [num_tokens, intermediate_size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, "silu") * up


class Xielu(NamedTuple):
    """A curve that a layer has learned: arXiv 2411.13010."""

    rise: float  # of squares, above zero
    fall: float  # of e^x - 1 - x, below
    slope: float  # at zero
    bound: float  # no exponent is above it

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Value by value, in float32, as `activate` has it."""
        values = x.float()
        above = self.rise * values.square()
        below = self.fall * (torch.expm1(values.clamp(max=self.bound)) - values)
        return (torch.where(values > 0.0, above, below) + self.slope * values).to(x.dtype)


def sigmoid(values: torch.Tensor) -> torch.Tensor:
    """In float32, a value's bits the same wherever it is, as `activate` has it."""
    return 1.0 / (1.0 + torch.exp(-values.float()))


def softplus(values: torch.Tensor) -> torch.Tensor:
    """In float32, a value's bits the same wherever it is, as `activate` has it."""
    floats = values.float()
    return torch.where(floats > MAX_EXPONENT, floats, torch.log1p(torch.exp(floats)))


def activate(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Value by value, in float32.

    Made of functions that give a value the same bits wherever in the tensor it is: torch's own
    SiLU and GELUs compute the last few of a row, or of a thread's share, in another way.
    """
    values = x.float()
    match kind:
        case "silu":
            activated = values / (1.0 + torch.exp(-values))
        case "gelu":
            activated = 0.5 * values * (1.0 + torch.erf(values * math.sqrt(0.5)))
        case "gelu_tanh":
            inner = math.sqrt(2.0 / math.pi) * (values + 0.044715 * values.pow(3))
            activated = 0.5 * values * (1.0 + torch.tanh(inner))
        case "relu":
            activated = functional.relu(values)
        case "relu2":
            activated = functional.relu(values).square()
    return activated.to(x.dtype)
