"""The seam between checkpoints and models: how a quantised weight is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.tensor_files import TensorFiles


@dataclass(frozen=True, slots=True)
class WeightParts:
    """The tensors that one weight is stored in: their names are `stem` and a suffix.

    What it refuses, it names: each of its methods may raise ConfigError.
    """

    stem: str
    files: TensorFiles

    def has(self, suffix: str) -> bool:
        return self.stem + suffix in self.files.headers

    def header(self, suffix: str) -> TensorHeader:
        header = self.files.headers.get(self.stem + suffix)
        if header is None:
            raise self.error(f"has no {self.stem + suffix!r}")
        return header

    def matrix(self, suffix: str = "", *, num_dims: int | None = None) -> tuple[int, ...]:
        """Its shape: two dimensions or more, or `num_dims`; there is something in each."""
        shape = self.header(suffix).shape
        if (len(shape) < 2 if num_dims is None else len(shape) != num_dims) or 0 in shape:
            raise self.error(f"has {self.stem + suffix!r} of shape {shape}, which is no matrix")
        return shape

    def expect(
        self, suffix: str, dtypes: Sequence[str], *shapes: tuple[int, ...], asked_by: str = ""
    ) -> None:
        """It is there, of one of these dtypes and of one of these shapes, which `asked_by`
        (a setting and its value) asks for.
        """
        header = self.header(suffix)
        if header.dtype not in dtypes:
            raise self.error(
                f"stores {self.stem + suffix!r} as {header.dtype}, not {' or '.join(dtypes)}"
            )
        if header.shape not in shapes:
            wanted = " or ".join(dict.fromkeys(map(str, shapes)))
            because = asked_by and f", which {asked_by} asks for"
            raise self.error(
                f"has {self.stem + suffix!r} of shape {header.shape}, not {wanted}{because}"
            )

    def get(self, suffix: str) -> torch.Tensor:
        return self.files.get(self.stem + suffix)

    def scales(self, suffix: str) -> torch.Tensor:
        """In float32, each of them a number."""
        scales = self.get(suffix)
        return self.numbers(suffix, scales.to(torch.float32))

    def numbers(self, suffix: str, scales: torch.Tensor) -> torch.Tensor:
        """The same; refused where one of them is not finite."""
        if not bool(torch.isfinite(scales).all()):
            raise self.error(f"has scales in {self.stem + suffix!r} that are no numbers")
        return scales

    def groups(self, suffix: str, num_groups: int, group_size: int | None) -> torch.Tensor | None:
        """Each column's group, [columns] int64. None where it is by place: nothing is stored there,
        or -1 for all, or what its place says, as tools write it that know of no other order.
        """
        if not self.has(suffix):
            return None
        groups = self.get(suffix).to(torch.int64)
        by_place = torch.arange(len(groups)) // (group_size or len(groups))
        if torch.equal(groups, by_place) or bool((groups == -1).all()):
            return None
        if bool((groups < 0).any()) or bool((groups >= num_groups).any()):
            raise self.error(f"has groups in {self.stem + suffix!r} that it has no scales of")
        return groups

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"the checkpoint in {self.files.place} {what}")


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
    that multiplies codes takes them from `load`.
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

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        """The shape of the weight, before anything is read. Raises ConfigError."""
        ...

    def load(self, parts: WeightParts) -> ScaledWeight:
        """The weight that was checked. Raises ConfigError for values that mean nothing."""
        ...
