"""A quantised weight as all formats have it in the end: codes, and scales of blocks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

CHUNK_VALUES = 1 << 23  # made dense at once: 32 MiB in float32, besides the result


@dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight:
    """A value is (code - zero) * scale, where a code may stand for a number of a book.

    Nothing is lost between a checkpoint's bits and these, and each value is rounded once: a back
    end that multiplies codes may take them as they are, others what `dense` gives.
    """

    codes: torch.Tensor  # [..., rows, columns] int8, uint8 or float8
    scales: torch.Tensor  # [..., row blocks, column groups] float32
    block_rows: int  # that share a scale; the last block may have fewer
    block_columns: int
    zeros: torch.Tensor | None = None  # the shape of scales, float32
    book: torch.Tensor | None = None  # [16] float32, by code
    groups: torch.Tensor | None = None  # [columns] int64: each one's group, where not by place
    is_turned: bool = False  # the model keeps it as [..., columns, rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight as the model keeps it."""
        *rest, rows, columns = self.codes.shape
        return (*rest, columns, rows) if self.is_turned else (*rest, rows, columns)

    def by_row(self) -> ScaledWeight:
        """The same with scales of each row, for a weight of two dimensions."""
        if self.block_rows == 1:
            return self
        blocks = torch.arange(len(self.codes)) // self.block_rows
        zeros = None if self.zeros is None else self.zeros[blocks]
        return replace(self, scales=self.scales[blocks], zeros=zeros, block_rows=1)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """All its values."""
        dense = torch.empty(self.codes.shape, dtype=dtype)
        matrices = dense.view(-1, *dense.shape[-2:])
        codes = self.codes.reshape(matrices.shape)
        scales = self.scales.reshape(-1, *self.scales.shape[-2:])
        zeros = None if self.zeros is None else self.zeros.reshape(scales.shape)
        for idx, matrix in enumerate(matrices):
            self._fill(matrix, codes[idx], scales[idx], None if zeros is None else zeros[idx])
        return dense.transpose(-1, -2).contiguous() if self.is_turned else dense

    def _fill(
        self,
        matrix: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
    ) -> None:
        num_rows, num_columns = codes.shape
        columns = self._columns(num_columns)
        step = max(1, CHUNK_VALUES // max(1, num_columns))
        for start in range(0, num_rows, step):
            rows = torch.arange(start, min(start + step, num_rows)) // self.block_rows
            values = self._numbers(codes[start : start + step])
            if zeros is not None:
                values -= zeros[rows][:, columns]
            values *= scales[rows][:, columns]
            matrix[start : start + step] = values

    def _columns(self, num_columns: int) -> torch.Tensor:
        """[num_columns], or one for all: the group of each column."""
        if self.groups is not None:
            return self.groups
        if self.scales.shape[-1] == 1:
            return torch.zeros(1, dtype=torch.int64)
        return torch.arange(num_columns) // self.block_columns

    def _numbers(self, codes: torch.Tensor) -> torch.Tensor:
        if self.book is None:
            return codes.to(torch.float32, copy=True)
        return self.book[codes.to(torch.int32)]


def join_rows(weights: Sequence[ScaledWeight]) -> ScaledWeight | None:
    """One weight of several, whose rows come one after the other. None where it would not be one:
    their codes mean other things, or their columns are grouped otherwise.
    """
    first, *rest = (weight.by_row() for weight in weights)
    if not rest:
        return first
    if any(not _is_alike(first, weight) for weight in rest):
        return None
    all_zeros = [weight.zeros for weight in (first, *rest) if weight.zeros is not None]
    return replace(
        first,
        codes=torch.cat([first.codes, *(weight.codes for weight in rest)]),
        scales=torch.cat([first.scales, *(weight.scales for weight in rest)]),
        zeros=torch.cat(all_zeros) if all_zeros else None,
    )


def _is_alike(first: ScaledWeight, second: ScaledWeight) -> bool:
    if (first.zeros is None) != (second.zeros is None) or first.is_turned or second.is_turned:
        return False
    if (first.codes.dtype, first.block_columns) != (second.codes.dtype, second.block_columns):
        return False
    return _is_same(first.book, second.book) and _is_same(first.groups, second.groups)


def _is_same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
