"""The seam to the heads of a checkpoint's tensors, and those that one weight is stored in."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.checkpoint.vision.vision_text import text_tensor_name
from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError

_INTEGERS = {"I64": "q", "I32": "i", "U8": "B"}


class TensorHeads(Protocol):
    """What is known of tensors, by their names, before they are read."""

    @property
    def place(self) -> str:
        """Where they are, for people."""
        ...

    @property
    def headers(self) -> Mapping[str, TensorHeader]: ...

    def read_bytes(self, name: str) -> bytes:
        """The bytes of a small tensor as it is stored. Raises ConfigError if it cannot be read."""
        ...


class TextHeads:
    """`TensorHeads` under the names of the text model on its own, without those of the tower."""

    def __init__(self, heads: TensorHeads) -> None:
        """Raises ConfigError where two tensors would have one name."""
        self._heads = heads
        self.stored_names: dict[str, str] = {}  # by the text model's
        self.place = heads.place
        for stored_name in heads.headers:
            name = text_tensor_name(stored_name)
            if name in self.stored_names:
                raise ConfigError(
                    f"the checkpoint in {heads.place} has {stored_name!r} and "
                    f"{self.stored_names[name]!r}, which are one tensor of its text model"
                )
            if name is not None:
                self.stored_names[name] = stored_name

        self.headers: Mapping[str, TensorHeader] = {
            name: heads.headers[stored] for name, stored in self.stored_names.items()
        }

    def read_bytes(self, name: str) -> bytes:
        return self._heads.read_bytes(self.stored_names[name])


@dataclass(frozen=True, slots=True)
class WeightHeads:
    """The tensors that one weight is stored in: their names are `stem` and a suffix.

    What it refuses, it names: each of its methods may raise ConfigError.
    """

    stem: str
    heads: TensorHeads

    def has(self, suffix: str) -> bool:
        return self.stem + suffix in self.heads.headers

    def header(self, suffix: str) -> TensorHeader:
        header = self.heads.headers.get(self.stem + suffix)
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

    def read_bytes(self, suffix: str) -> bytes:
        return self.heads.read_bytes(self.stem + suffix)

    def integers(self, suffix: str) -> tuple[int, ...]:
        """The values of a tensor of a few integers, whose dtype and shape `expect` has taken."""
        code = _INTEGERS[self.header(suffix).dtype]
        return tuple(value for (value,) in struct.iter_unpack(f"<{code}", self.read_bytes(suffix)))

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"the checkpoint in {self.heads.place} {what}")
