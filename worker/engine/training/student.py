"""The seam of what is trained to guess: a student, and the model that it learns from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

_KEPT_FILES = ("tokenizer*", "tekken.json", "special_tokens_map.json", "chat_template*", "vocab*")


class Batch(NamedTuple):
    """Samples of similar length, padded at the right, where nothing attends to the pads."""

    input_ids: torch.Tensor  # [num_samples, len] int64
    counts: torch.Tensor  # [num_samples, len] bool: places behind which the answer goes on


class Teacher:
    """A checkpoint in transformers, in float32."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM  # late: it takes seconds

        auto_model: Any = AutoModelForCausalLM
        self.path = path
        self.model = auto_model.from_pretrained(path, dtype=torch.float32).eval()
        self.config = self.model.config

    @property
    def dtype(self) -> torch.dtype:
        """In which it is stored."""
        dtype: torch.dtype = self.config.dtype or torch.bfloat16
        return dtype

    def copy_tokenizer(self, out: Path) -> None:
        for pattern in _KEPT_FILES:
            for path in self.path.glob(pattern):
                shutil.copy(path, out / path.name)


class Student(Protocol):
    """One kind of guesser."""

    @property
    def module(self) -> torch.nn.Module:
        """What is trained."""
        ...

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """How far its probabilities are from the teacher's, and how often both find the same token
        likeliest.
        """
        ...

    def save(self, out: Path) -> str:
        """Writes a checkpoint, in the teacher's dtype; what `jetflock serve` is to be told then."""
        ...
