"""The norms of a fused decoder: of its stream, and of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from worker.engine.models.layer_config import HeadNormConfig, NormConfig


class NormWeights(NamedTuple):
    """As they are stored, in the model's dtype."""

    weight: torch.Tensor  # [size]; of a norm without, nothing
    bias: torch.Tensor | None  # [size]


class AddRmsNorm(Protocol):
    """The norm of a sum, and the sum, in one: as `LayerOps.add_rms_norm`."""

    def __call__(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


MeanOfRanks = Callable[[torch.Tensor], torch.Tensor]  # value by value


class Norm(Protocol):
    """At one place of a layer."""

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of each row: [num_tokens, size]."""
        ...

    def of_sum(
        self, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of the sum, and the sum."""
        ...


class RmsNorm:
    """Llama's."""

    def __init__(self, weight: torch.Tensor, eps: float, add_rms_norm: AddRmsNorm) -> None:
        self._weight = weight
        self._eps = eps
        self._add_rms_norm = add_rms_norm

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._weight, self._eps)

    def of_sum(
        self, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._add_rms_norm(delta, residual, self._weight, self._eps)


class FloatNorm:
    """Any other one, computed in float32 and rounded once."""

    def __init__(self, config: NormConfig, weights: NormWeights) -> None:
        self._config = config
        self._weight = None
        if config.has_weight:
            self._weight = weights.weight.float() + config.weight_offset
        self._bias = None if weights.bias is None else weights.bias.float()

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return _float_norm(self._config, x, self._weight, self._bias)

    def of_sum(
        self, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + delta
        return self.of(total), total


class NoNorm:
    """Where a family has none."""

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def of_sum(
        self, delta: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + delta
        return total, total


class HeadNorm:
    """The norm of queries and keys, and it may be of values. Its weights are in the model's dtype
    where it is plain, as kernels read them.
    """

    def __init__(
        self,
        config: HeadNormConfig,
        norm: NormConfig,
        weight: torch.Tensor | None,  # [num_heads + num_kv_heads, head_dim]; None: there is none
        bias: torch.Tensor | None,  # the same
        num_heads: int,
        mean: MeanOfRanks | None = None,  # where others have the other heads
    ) -> None:
        self.is_after_rope = config.is_after_rope
        self.is_plain = config.is_plain and norm.is_plain
        self.eps = norm.eps
        self.weight = weight
        if weight is not None and not self.is_plain:
            self.weight = weight.float() + norm.weight_offset
        self._bias = None if bias is None else bias.float()
        self._norms_values = config.norms_values
        self._norm = norm
        self._num_queries = num_heads if config.scope == "whole" else None
        self._mean = mean

    def of(self, heads: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads + num_kv_heads, head_dim]."""
        if self.is_plain:
            assert self.weight is not None, "a plain one has weights"
            return functional.rms_norm(heads, heads.shape[-1:], None, self.eps) * self.weight
        if self._num_queries is None:
            normed = _float_norm(self._norm, heads.float(), None, None)
        else:
            queries, keys = heads[:, : self._num_queries], heads[:, self._num_queries :]
            wholes = [each.flatten(1).float() for each in (queries, keys)]
            normed = torch.cat(self._normed(wholes), dim=1).view(heads.shape)
        if self.weight is not None:
            normed = normed * self.weight
        return (normed if self._bias is None else normed + self._bias).to(heads.dtype)

    def _normed(self, wholes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._mean is None:
            return [_float_norm(self._norm, each, None, None) for each in wholes]
        assert self._norm.kind == "rms", "no other one is divided"
        squares = torch.stack([each.square().mean(dim=-1) for each in wholes])
        factors = torch.rsqrt(self._mean(squares) + self.eps).unsqueeze(-1)
        return [each * factor for each, factor in zip(wholes, factors, strict=True)]

    def of_values(self, values: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_kv_heads, head_dim]."""
        return _float_norm(self._norm, values, None, None) if self._norms_values else values


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Over the last dimension."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each row, in float32: [num_rows, size] -> [num_rows, 1] each; by the
    kernel of norms, in which a row's bits are its own.
    """
    _, mean, factor = torch.native_layer_norm(x.float(), x.shape[-1:], None, None, 0.0)
    return mean, factor.square().reciprocal()


def _float_norm(
    config: NormConfig, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """`weight` and `bias` in float32."""
    size = x.shape[-1:]
    if config.kind == "layer":
        return functional.layer_norm(x.float(), size, weight, bias, config.eps).to(x.dtype)
    normed = functional.rms_norm(x.float(), size, weight, config.eps)
    return (normed if bias is None else normed + bias).to(x.dtype)
