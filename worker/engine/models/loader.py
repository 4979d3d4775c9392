"""Reads the weights of a checkpoint by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from shared.checkpoint.stored_format import HEAD_FORMAT, MadeFormat
from worker.engine.formats.made_codes import is_of_experts, make_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored_checkpoint import StoredCheckpoint, check_unread
from worker.engine.models.decoder_config import WeightScale

OnProgress = Callable[[float], None]


class WeightReader(Protocol):
    """Where a model's tensors come from."""

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """In the model's dtype. Raises ConfigError when there is none of this shape."""
        ...

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        """Like `read`, in this dtype."""
        ...

    def has(self, name: str) -> bool:
        """Where a checkpoint may store something in one of several ways."""
        ...


class CodeReader(WeightReader, Protocol):
    """Gives quantised weights as they are stored, too."""

    def read_codes(self, name: str, *shape: int) -> ScaledWeight | None:
        """None: they are stored as numbers. Raises ConfigError as `read` does."""
        ...


class StoredReader(CodeReader, Protocol):
    """Gives what is stored in numbers as it is, too."""

    def read_stored(self, name: str, *shape: int) -> torch.Tensor:
        """Like `read`, in a dtype in which nothing of it is rounded."""
        ...


class CheckpointReader:
    """A checkpoint's weights, by name, in one dtype.

    `on_progress` hears, from 0 to 1, which share of the bytes has been read.
    """

    def __init__(
        self, checkpoint: StoredCheckpoint, dtype: torch.dtype, on_progress: OnProgress
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._on_progress = on_progress
        self._unread = set(checkpoint.files.headers)
        self._num_bytes = sum(each.num_bytes for each in checkpoint.files.headers.values())
        self._num_read_bytes = 0

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """In our dtype. Raises ConfigError when it is missing or of another shape."""
        return self.read_as(self._dtype, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        """Like `read`, in this dtype."""
        return self._read(dtype, name, shape).to(dtype)

    def read_stored(self, name: str, *shape: int) -> torch.Tensor:
        """As a `StoredReader`."""
        return self._read(torch.float32, name, shape)

    def _read(self, dtype: torch.dtype, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """`dtype` is that of a quantised weight."""
        stored_name = self._checkpoint.heads.find(name, shape)
        tensor = self._checkpoint.read(stored_name, dtype)
        self._note_read(stored_name)
        return tensor

    def has(self, name: str) -> bool:
        return self._checkpoint.heads.stored_name(name) is not None

    def read_codes(self, name: str, *shape: int) -> ScaledWeight | None:
        """None: they are stored as numbers. Raises ConfigError as `read` does."""
        stored_name = self._checkpoint.heads.find(name, shape)
        codes = self._checkpoint.codes(stored_name)
        if codes is not None:
            self._note_read(stored_name)
        return codes

    def finish(
        self, unread_prefixes: tuple[str, ...] = (), unread_parts: tuple[str, ...] = ()
    ) -> None:
        """The model is whole. Raises ConfigError when there are weights that it did not read, but
        for those whose names begin so, or have such a part.
        """
        unread = [
            name
            for name in sorted(self._unread)
            if not name.startswith(unread_prefixes)
            and not any(part in f".{name}" for part in unread_parts)
        ]
        check_unread(self._checkpoint.files, unread)
        self._on_progress(1.0)

    def _note_read(self, stored_name: str) -> None:
        self._unread -= {*self._checkpoint.heads.stored_names(stored_name)}
        self._num_read_bytes += self._checkpoint.heads.num_bytes(stored_name)
        self._on_progress(min(1.0, self._num_read_bytes / max(1, self._num_bytes)))


@dataclass(frozen=True, slots=True)
class MadeCodes:
    """Which weights codes are made of, and which codes."""

    format: MadeFormat
    projections: frozenset[str] = frozenset()  # their names, beside those of experts
    head: str = ""  # its name, or the embeddings' where they are taken for it; empty: it has none
    is_turned: bool = False  # all but the head are stored as [..., in_features, out_features]

    def of(self, name: str) -> MadeFormat | None:
        """None: it stays as it is. Norms do, and embeddings, which are read by row."""
        if name == self.head:
            return HEAD_FORMAT[self.format]
        return self.format if name in self.projections or is_of_experts(name) else None


class QuantizingReader:
    """A `CodeReader` that makes codes of the weights of another one's.

    They are made of what is stored, before it is rounded to the model's dtype: so all workers have
    the same codes.
    """

    def __init__(
        self, reader: StoredReader, made: MadeCodes, dtype: torch.dtype, num_threads: int
    ) -> None:
        self._reader = reader
        self._made = made
        self._dtype = dtype
        self._num_threads = num_threads

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self.read_as(self._dtype, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        """Like `read`, in this dtype."""
        codes = self.read_codes(name, *shape)
        return self._reader.read_as(dtype, name, *shape) if codes is None else codes.dense(dtype)

    def has(self, name: str) -> bool:
        return self._reader.has(name)

    def read_codes(self, name: str, *shape: int) -> ScaledWeight | None:
        kind = self._made.of(name)
        if kind is None:
            return None
        weight = self._reader.read_stored(name, *shape).cpu()
        if self._made.is_turned and name != self._made.head:
            turned = make_codes(kind, weight.transpose(-1, -2), self._num_threads)
            return replace(turned, is_turned=True)
        return make_codes(kind, weight, self._num_threads)


class ScalingReader:
    """Reads projections with the factors of what they are given, and of what they give: what it
    multiplies is rounded once more.
    """

    def __init__(self, reader: WeightReader, scales: Sequence[WeightScale]) -> None:
        self._reader = reader
        self._scales = scales

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._scaled(name, self._reader.read(name, *shape))

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._scaled(name, self._reader.read_as(dtype, name, *shape))

    def has(self, name: str) -> bool:
        return self._reader.has(name)

    def _scaled(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        for scale in self._scales:
            if module.endswith(scale.module):
                return _scaled(tensor, scale, is_weight=kind == "weight")
        return tensor


def _scaled(tensor: torch.Tensor, scale: WeightScale, *, is_weight: bool) -> torch.Tensor:
    """A weight [out_features, in_features], or a bias [out_features]."""
    factors = torch.ones(len(tensor), device=tensor.device)
    if scale.outputs:
        parts = [torch.full((num,), factor) for num, factor in scale.outputs]
        factors = torch.cat(parts).to(tensor.device)
    if is_weight:
        factors = (factors * scale.input).unsqueeze(-1)
    return (tensor.float() * factors).to(tensor.dtype)
