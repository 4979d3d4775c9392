"""The adapters that an engine has loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from shared.errors import ConfigError
from worker.engine.lora.lora_adapter import LoraAdapter
from worker.engine.lora.lora_projection import LoraProjection
from worker.engine.lora.lora_weights import LoraWeights, read_lora_weights

MakeProjections = Callable[[LoraWeights], dict[str, LoraProjection]]


class AdapterPool:
    """By id. One that is dropped is still there for the requests that run with it."""

    def __init__(
        self, make: MakeProjections, dtype: torch.dtype, max_adapters: int, max_rank: int
    ) -> None:
        self._make = make
        self._dtype = dtype
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._adapters: dict[str, LoraAdapter] = {}
        self._errors: dict[str, str] = {}  # of those that could not be loaded, until dropped

    def get(self, adapter_id: str) -> LoraAdapter | None:
        return self._adapters.get(adapter_id)

    def absence(self, adapter_id: str) -> str:
        """Why there is none."""
        error = self._errors.get(adapter_id)
        return f"the LoRA adapter {adapter_id} is not loaded" + (f": {error}" if error else "")

    def load(self, adapter_id: str, path: Path) -> None:
        """Without effect when it is there. Raises ConfigError."""
        try:
            self._load(adapter_id, path)
        except ConfigError as exc:
            self._errors[adapter_id] = str(exc)
            raise
        self._errors.pop(adapter_id, None)

    def _load(self, adapter_id: str, path: Path) -> None:
        if adapter_id in self._adapters:
            return
        if len(self._adapters) >= self._max_adapters:
            raise ConfigError(f"max_loras={self._max_adapters} adapters are loaded already")
        with torch.inference_mode():
            weights = read_lora_weights(path, self._dtype, self._max_rank)
            try:
                self._adapters[adapter_id] = LoraAdapter(adapter_id, self._make(weights))
            except torch.OutOfMemoryError:
                raise ConfigError("the GPU has no memory left for a LoRA adapter") from None

    def drop(self, adapter_id: str) -> None:
        """Without effect when it is not there."""
        self._adapters.pop(adapter_id, None)
        self._errors.pop(adapter_id, None)
