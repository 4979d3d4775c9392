"""Reads the tensors of a checkpoint from its GGUF files, by Hugging Face's names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import torch

from shared.errors import ConfigError
from shared.gguf.facts import ModelFacts
from shared.gguf.gguf_file import GgufTensor
from shared.gguf.gguf_model import GgufModel
from shared.gguf.tensor_names import Layout, TensorSource, tensor_sources
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.tensor_files import rows_in_halves
from worker.engine.models.gguf_tensor import read_gguf_codes, read_tensor
from worker.engine.models.loader import OnProgress


class GgufReader:
    """A `StoredReader` that reads blocks, tensor by tensor. A context.

    `on_progress` hears, from 0 to 1, which share of the bytes has been read.
    """

    def __init__(
        self,
        model_path: Path,
        dtype: torch.dtype,
        on_progress: OnProgress,
        num_threads: int = 1,
    ) -> None:
        self.num_threads = num_threads
        self._model_path = model_path
        self._model = GgufModel.read(gguf_file_in(model_path))
        self._facts = ModelFacts(self._model)
        self._sources = tensor_sources(self._model)
        self._dtype = dtype
        self._on_progress = on_progress
        self._num_read_bytes, self._num_bytes = 0, self._model.num_weight_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        if exc_type is None:
            self._on_progress(1.0)

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """In our dtype. Raises ConfigError when it is missing or of another shape."""
        return self.read_as(self._dtype, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        """Like `read`, in this dtype."""
        tensor = self._arranged(dtype, name, self._source(name))
        self._check_read(name, tensor.shape, shape)
        return tensor

    def read_stored(self, name: str, *shape: int) -> torch.Tensor:
        """As a `StoredReader`."""
        return self.read_as(torch.float32, name, *shape)

    def has(self, name: str) -> bool:
        return name in self._sources

    def read_codes(self, name: str, *shape: int) -> ScaledWeight | None:
        """None for types that have no codes, and for what is no matrix by itself in the file.

        Raises ConfigError as `read` does.
        """
        source = self._source(name)
        if source.layout not in (Layout.PLAIN, Layout.PAIRED_ROWS) or len(shape) != 2:
            return None
        (tensor,) = source.tensors
        codes = read_gguf_codes(tensor, self.num_threads)
        if codes is None:
            return None
        self._num_read_bytes += tensor.num_bytes
        self._check_read(name, codes.shape, shape)
        if source.layout is Layout.PAIRED_ROWS:
            rows = rows_in_halves(torch.arange(shape[0]), self._num_heads(name))
            return codes.with_rows(rows)
        return codes

    @property
    def names(self) -> Iterable[str]:
        """The names of all tensors, as Hugging Face has them."""
        return self._sources

    def stored(self, name: str) -> tuple[GgufTensor, ...]:
        """What a tensor is made of in the file; gates before their values. Raises ConfigError."""
        return self._source(name).tensors

    def note_read(self, tensor: GgufTensor) -> None:
        """One that somebody has read who took it by `stored`."""
        self._num_read_bytes += tensor.num_bytes
        self._on_progress(min(1.0, self._num_read_bytes / self._num_bytes))

    def _source(self, name: str) -> TensorSource:
        source = self._sources.get(name)
        if source is None:
            raise ConfigError(f"the checkpoint in {self._model_path} has no tensor {name!r}")
        return source

    def _check_read(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if tuple(found) != wanted:
            raise ConfigError(f"{name!r} has shape {tuple(found)}, config.json says {wanted}")
        self._on_progress(min(1.0, self._num_read_bytes / self._num_bytes))

    def _num_heads(self, name: str) -> int:
        return self._facts.num_heads if ".q_proj." in name else self._facts.num_kv_heads

    def _arranged(self, dtype: torch.dtype, name: str, source: TensorSource) -> torch.Tensor:
        match source.layout:
            case Layout.NORM_FROM_ONE:
                return (self._read_one(source, torch.float32) - 1.0).to(dtype)
            case Layout.PAIRED_ROWS:
                return rows_in_halves(self._read_one(source, dtype), self._num_heads(name))
            case Layout.GATES_THEN_UPS:
                return torch.cat(self._read_two(source, dtype), dim=1)
            case Layout.GATES_AND_UPS:
                gates, ups = self._read_two(source, dtype)
                both = torch.stack([gates, ups], dim=2).flatten(1, 2)
                return both if both.ndim == 2 else both.transpose(1, 2).contiguous()
            case Layout.TRANSPOSED:
                return self._read_one(source, dtype).transpose(-1, -2).contiguous()
            case Layout.PLAIN:
                return self._read_one(source, dtype)

    def _read_one(self, source: TensorSource, dtype: torch.dtype) -> torch.Tensor:
        (tensor,) = source.tensors
        return self._read(tensor, dtype)

    def _read_two(self, source: TensorSource, dtype: torch.dtype) -> list[torch.Tensor]:
        return [self._read(tensor, dtype) for tensor in source.tensors]

    def _read(self, tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
        self._num_read_bytes += tensor.num_bytes
        return read_tensor(tensor, dtype, self.num_threads)


def gguf_file_in(model_path: Path) -> Path:
    """The first of the GGUF files of a checkpoint's folder. Raises ConfigError."""
    path = min(model_path.glob("*.gguf"), default=None)
    if path is None:
        raise ConfigError(f"there is no GGUF file in {model_path}")
    return path
