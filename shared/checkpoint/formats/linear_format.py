"""The seam to formats: how the tensors of a quantised weight are named, shaped and typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.checkpoint.formats.tensor_heads import WeightHeads


@dataclass(frozen=True, slots=True)
class InputRounding:
    """How the inputs of a weight are rounded to integers of 8 bits, each token by itself."""

    size: int | None = None  # inputs that are rounded together; None: all of a token
    is_static: bool = False  # to a scale that the checkpoint has, the same for all tokens


def bits_in_codes(num_bits: int, group_size: int | None, *, has_zeros: bool = False) -> float:
    """How many bits a back end that multiplies codes keeps of a value in 8 or 4: its group's scale,
    in 32 bits, and zero point, two times in 8, are included.
    """
    of_group = 32 + 16 * (has_zeros and num_bits == 4)
    return num_bits + (of_group / group_size if group_size else 0.0)


def name_of_integers(num_bits: int, group_size: int | None) -> str:
    """The name of a `LinearFormat` of integers; the group's size is that of its columns."""
    size = "by channel" if group_size is None else f"in groups of {group_size}"
    return f"int{num_bits} {size}"


class LinearFormat(Protocol):
    """One way to store a weight [..., out_features, in_features].

    A weight is found by its main tensor, whose name ends with `marker` in place of `ending`, and
    whose dtype is one of `dtypes`. Rows are joined and divided once the weight is dense; a back end
    that multiplies codes takes them as they are. The engine knows how each format is read.
    """

    @property
    def name(self) -> str:
        """What people read: "int4 in groups of 128"."""
        ...

    @property
    def marker(self) -> str: ...

    @property
    def ending(self) -> str:
        """How the weight's name ends, as a model asks for it."""
        ...

    @property
    def dtypes(self) -> frozenset[str]: ...

    @property
    def code_bits(self) -> float | None:
        """`bits_in_codes` of a value; None: a back end that multiplies codes makes it dense."""
        ...

    @property
    def suffixes(self) -> Sequence[str]:
        """How the names of all tensors end that may belong to one weight, the main one included."""
        ...

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        """The shape of the weight, before it is read. Raises ConfigError."""
        ...
