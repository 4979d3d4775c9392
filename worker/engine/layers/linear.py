"""Linear layers, and the seam behind which they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, in_features] -> [num_rows, out]
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]  # as Linears.make


class Linears(Protocol):
    """Makes linear layers."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """`weight` [out_features, in_features], `bias` [out_features]."""
        ...


class Table(Protocol):
    """Embeddings of tokens, which may be a model's head, too."""

    @property
    def dtype(self) -> torch.dtype: ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size], in the model's dtype."""
        ...

    def head(self) -> Linear:
        """To an output for each token."""
        ...


class DenseTable:
    """A `Table` of numbers."""

    def __init__(self, weight: torch.Tensor, make_head: Callable[[torch.Tensor], Linear]) -> None:
        self._weight = weight  # [vocab_size, hidden_size]
        self._make_head = make_head
        self.dtype = weight.dtype

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self._weight)

    def head(self) -> Linear:
        return self._make_head(self._weight)


class PlainLinear:
    """`F.linear` on the weight as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's inner product on a weight that was reordered once: 1.1 to 4 times F.linear's speed.

    Its operators are private to torch: another version may change or drop them.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return output


class HeadLinears:
    """A linear layer for each head: a head's rows do not depend on how many tokens there are."""

    def __init__(self, weights: torch.Tensor, linears: Linears) -> None:
        """`weights` [num_heads, out_features, in_features]."""
        self._linears = [linears.make(each.contiguous(), None) for each in weights]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, in_features] -> [num_tokens, num_heads, out_features]."""
        heads = x.transpose(0, 1).contiguous()
        made = [linear(rows) for linear, rows in zip(self._linears, heads, strict=True)]
        return torch.stack(made, dim=1)


class HeadProducts:
    """The same in one product, whose rows may depend on their company: for GPUs."""

    def __init__(self, weights: torch.Tensor) -> None:
        """`weights` [num_heads, out_features, in_features]."""
        self._weights = weights.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, in_features] -> [num_tokens, num_heads, out_features]."""
        return torch.bmm(x.transpose(0, 1), self._weights.transpose(1, 2)).transpose(0, 1)


class PlainLinears:
    """Makes layers of `F.linear`, whose rows may depend on their company: for GPUs."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return PlainLinear(weight, bias)
