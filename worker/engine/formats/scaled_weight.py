"""A quantised weight as all formats have it in the end: codes, and scales of blocks of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from worker.engine.formats.block_codes import BlockCodes, join_blocks

CHUNK_VALUES = 1 << 23  # made dense at once: 32 MiB in float32, besides the result


@dataclass(frozen=True, slots=True, eq=False)
class GroupSteps:
    """What each group multiplies scales and minima with, where a few groups share them."""

    scales: torch.Tensor  # [rows, column groups] int8, or uint8 below 128
    minima: torch.Tensor | None = None  # the same

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> GroupSteps:
        """The same steps with all tensors changed."""
        return GroupSteps(change(self.scales), None if self.minima is None else change(self.minima))


@dataclass(frozen=True, slots=True)
class InputCodes:
    """Integers of 8 bits that inputs are rounded to, each token by itself."""

    size: int | None = None  # inputs that are rounded together; None: all of a token; 0: none are
    scale: float | None = None  # of all; None: the largest of those rounded together is 127


KEPT_INPUTS = InputCodes(0)  # in 16 bits, whatever a format says


@dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight:
    """A value is (code - zero) * scale - minimum, where a code may stand for a number of a book.

    Nothing is lost between a checkpoint's bits and these, and each value is rounded once: a back
    end that multiplies codes may take them as they are, others what `dense` gives.
    """

    stored: torch.Tensor | BlockCodes  # `codes`, or a matrix's that nobody has unpacked yet
    scales: torch.Tensor  # [..., row blocks, column groups] float32, or as many as steps say
    block_rows: int  # that share a scale; the last block may have fewer
    block_columns: int
    zeros: torch.Tensor | None = None  # the shape of scales, float32
    minima: torch.Tensor | None = None  # the same
    steps: GroupSteps | None = None  # of a matrix with scales of each row
    book: torch.Tensor | None = None  # [16] float32, by code
    groups: torch.Tensor | None = None  # [columns] int64: each one's group, where not by place
    is_turned: bool = False  # the model keeps it as [..., columns, rows]
    inputs: InputCodes | None = None  # None: its format leaves them as they are

    @property
    def codes(self) -> torch.Tensor:
        """[..., rows, columns] int8, uint8, int16 or float8."""
        return self.stored.unpack() if isinstance(self.stored, BlockCodes) else self.stored

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape as the model keeps it."""
        *rest, rows, columns = self.stored.shape
        return (*rest, columns, rows) if self.is_turned else (*rest, rows, columns)

    def by_row(self) -> ScaledWeight:
        """The same with scales of each row, for a weight of two dimensions."""
        if self.block_rows == 1:
            return self
        return self._with(self.stored, torch.arange(self.stored.shape[0]))

    def with_rows(self, rows: torch.Tensor) -> ScaledWeight:
        """These rows of a weight of two dimensions, with scales of each."""
        stored = self.stored
        return self._with(
            stored.with_rows(rows) if isinstance(stored, BlockCodes) else stored[rows], rows
        )

    def _with(self, stored: torch.Tensor | BlockCodes, rows: torch.Tensor) -> ScaledWeight:
        """`stored`: these rows of it."""
        blocks = rows // self.block_rows
        return replace(
            self,
            stored=stored,
            scales=self.scales[blocks],
            zeros=None if self.zeros is None else self.zeros[blocks],
            minima=None if self.minima is None else self.minima[blocks],
            steps=None if self.steps is None else self.steps.each(lambda each: each[blocks]),
            block_rows=1,
        )

    def without_steps(self) -> ScaledWeight:
        """The same with scales and minima of each group."""
        steps = self.steps
        if steps is None:
            return self
        minima = self.minima
        if minima is not None and steps.minima is not None:
            minima = _products(minima, steps.minima)
        return replace(self, scales=_products(self.scales, steps.scales), minima=minima, steps=None)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """All its values."""
        dense = torch.empty(self.stored.shape, dtype=dtype)
        whole = self.without_steps()
        for idx, matrix in enumerate(dense.view(-1, *dense.shape[-2:])):
            whole.matrix(idx)._fill(matrix)
        return dense.transpose(-1, -2).contiguous() if self.is_turned else dense

    def matrix(self, idx: int) -> ScaledWeight:
        """One of experts."""
        stored = self.stored
        return replace(
            self,
            stored=stored.matrix(idx)
            if isinstance(stored, BlockCodes)
            else _matrix_of(stored, idx),
            scales=_matrix_of(self.scales, idx),
            zeros=None if self.zeros is None else _matrix_of(self.zeros, idx),
            minima=None if self.minima is None else _matrix_of(self.minima, idx),
        )

    def _fill(self, matrix: torch.Tensor) -> None:
        codes = self.codes
        num_rows, num_columns = codes.shape
        columns = self._columns(num_columns)
        step = max(1, CHUNK_VALUES // max(1, num_columns))
        for start in range(0, num_rows, step):
            rows = torch.arange(start, min(start + step, num_rows)) // self.block_rows
            values = self._numbers(codes[start : start + step])
            if self.zeros is not None:
                values -= self.zeros[rows][:, columns]
            values *= self.scales[rows][:, columns]
            if self.minima is not None:
                values -= self.minima[rows][:, columns]
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
    their codes mean other things, or their columns are in groups by other than place.
    """
    parts = _in_like_steps([weight.by_row() for weight in weights])
    first, *rest = parts
    if any(not _is_alike(first, weight) for weight in rest):
        if not all(map(_is_of_integers, parts)):
            return None
        size = math.gcd(*(part.block_columns for part in parts))
        first, *_ = parts = [_in_groups(part, size) for part in parts]
    return replace(
        first,
        stored=_joined_codes([part.stored for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=_joined([part.zeros for part in parts]),
        minima=_joined([part.minima for part in parts]),
        steps=_joined_steps([part.steps for part in parts if part.steps is not None]),
        inputs=_joined_inputs([part.inputs for part in parts]),
    )


def _joined_codes(parts: Sequence[torch.Tensor | BlockCodes]) -> torch.Tensor | BlockCodes:
    blocks = [part for part in parts if isinstance(part, BlockCodes)]
    if len(blocks) == len(parts):
        return join_blocks(blocks)
    return torch.cat([part.unpack() if isinstance(part, BlockCodes) else part for part in parts])


def _joined_inputs(parts: Sequence[InputCodes | None]) -> InputCodes | None:
    """None where they are not rounded alike. Of scales the largest: nothing is cut off by it."""
    found = [part for part in parts if part is not None]
    sizes = {part.size for part in found}
    scales = [part.scale for part in found if part.scale is not None]
    if len(found) < len(parts) or len(sizes) > 1 or len(scales) not in (0, len(parts)):
        return None
    return replace(found[0], scale=max(scales, default=None))


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """They all are there, or none is."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _joined_steps(parts: Sequence[GroupSteps]) -> GroupSteps | None:
    if not parts:
        return None
    return GroupSteps(
        torch.cat([part.scales for part in parts]), _joined([part.minima for part in parts])
    )


def _groups_per_scale(weight: ScaledWeight) -> int:
    return 1 if weight.steps is None else weight.steps.scales.shape[1] // weight.scales.shape[1]


def _in_like_steps(parts: list[ScaledWeight]) -> list[ScaledWeight]:
    """All with steps of groups of one size, where as many columns share scales; or none with steps.

    One that has no minima has none of theirs, whatever the steps.
    """
    if len({(_groups_per_scale(part), part.minima is None) for part in parts}) == 1:
        return parts
    sizes = {part.block_columns * _groups_per_scale(part) for part in parts}
    if len(sizes) > 1 or any(part.steps is None for part in parts):
        return [part.without_steps() for part in parts]
    size = min(part.block_columns for part in parts)
    has_minima = any(part.minima is not None for part in parts)
    return [_with_steps_of(part, size, has_minima=has_minima) for part in parts]


def _with_steps_of(weight: ScaledWeight, size: int, *, has_minima: bool) -> ScaledWeight:
    """The same weight in smaller groups: of `size` columns, a divisor of theirs."""
    steps, minima, times = weight.steps, weight.minima, weight.block_columns // size
    assert steps is not None, "it has some"
    if has_minima and minima is None:
        minima = torch.zeros_like(weight.scales)
        steps = replace(steps, minima=torch.zeros_like(steps.scales))
    spread = steps.each(lambda each: each.to(torch.int8).repeat_interleave(times, dim=1))
    return replace(weight, minima=minima, steps=spread, block_columns=size)


def _products(shared: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """[rows, column groups] float32."""
    return (shared[..., None] * steps.view(*shared.shape, -1)).flatten(1)


def _is_alike(first: ScaledWeight, second: ScaledWeight) -> bool:
    for one, other in ((first.zeros, second.zeros), (first.minima, second.minima)):
        if (one is None) != (other is None):
            return False
    if first.is_turned or second.is_turned:
        return False
    if first.block_columns != second.block_columns or _kind(first) != _kind(second):
        return False
    return _is_same(first.book, second.book) and _is_same(first.groups, second.groups)


def _kind(weight: ScaledWeight) -> object:
    """What its codes are read as; those of blocks are packed row by row."""
    return BlockCodes if isinstance(weight.stored, BlockCodes) else weight.stored.dtype


def _is_same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def is_floating_point(codes: torch.Tensor | BlockCodes) -> bool:
    """Whether they are floats of 8 bits, which blocks have none of."""
    return isinstance(codes, torch.Tensor) and codes.is_floating_point()


def _is_of_integers(weight: ScaledWeight) -> bool:
    """Whether its codes are the numbers that they say, in groups by place."""
    is_plain = weight.book is None and weight.groups is None and not weight.is_turned
    return is_plain and not is_floating_point(weight.stored)


def _in_groups(weight: ScaledWeight, size: int) -> ScaledWeight:
    """The same in groups of a divisor of their size, with zero points and minima."""
    weight = weight.without_steps()
    times, num_groups = weight.block_columns // size, -(-weight.stored.shape[1] // size)
    stored = weight.stored

    def spread(values: torch.Tensor | None) -> torch.Tensor:
        values = torch.zeros_like(weight.scales) if values is None else values
        return values.repeat_interleave(times, dim=1)[:, :num_groups]

    return replace(
        weight,
        stored=stored if isinstance(stored, BlockCodes) else stored.to(torch.int16),
        scales=spread(weight.scales),
        zeros=spread(weight.zeros),
        minima=spread(weight.minima),
        block_columns=size,
    )


def _matrix_of(values: torch.Tensor, idx: int) -> torch.Tensor:
    return values.reshape(-1, *values.shape[-2:])[idx]
