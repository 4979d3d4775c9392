"""The adapters that an engine knows, and the weights of some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from shared.errors import ConfigError
from worker.engine.lora.lora_adapter import LoraAdapter
from worker.engine.lora.lora_projection import LoraProjections, LoraWeights, read_lora_weights

MakeProjections = Callable[[LoraWeights], LoraProjections]


class AdapterPool:
    """Adapters by id. Of those that were loaded it keeps the weights of so many, the latest used.

    Whatever gives way, or is dropped, is still there for the requests that run with it; one that is
    asked for again is read again.
    """

    def __init__(
        self, make: MakeProjections, dtype: torch.dtype, max_adapters: int, max_rank: int
    ) -> None:
        self._make = make
        self._dtype = dtype
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._paths: dict[str, Path] = {}
        self._kept: dict[str, LoraAdapter] = {}  # the one that was used last is the last
        # Those in memory: the kept ones, and those that requests run with.
        self._in_memory: WeakValueDictionary[str, LoraAdapter] = WeakValueDictionary()
        self._errors: dict[str, str] = {}  # of those that could not be loaded, until dropped

    def get(self, adapter_id: str) -> LoraAdapter | None:
        """Reads it again when it has given way; None when that cannot be done."""
        path = self._paths.get(adapter_id)
        if path is None:
            return None
        try:
            return self._use(adapter_id, path)
        except ConfigError as exc:
            self._errors[adapter_id] = str(exc)
            return None

    def absence(self, adapter_id: str) -> str:
        """Why there is none."""
        error = self._errors.get(adapter_id)
        return f"the LoRA adapter {adapter_id} is not loaded" + (f": {error}" if error else "")

    def load(self, adapter_id: str, path: Path) -> None:
        """Raises ConfigError."""
        try:
            self._use(adapter_id, path)
        except ConfigError as exc:
            self._errors[adapter_id] = str(exc)
            raise
        self._paths[adapter_id] = path
        self._errors.pop(adapter_id, None)

    def _use(self, adapter_id: str, path: Path) -> LoraAdapter:
        """Raises ConfigError."""
        adapter = self._in_memory.get(adapter_id)
        if adapter is None:
            if not self._max_adapters:
                raise ConfigError("this worker has max_loras=0")
            self._keep_at_most(self._max_adapters - 1)
            adapter = self._in_memory[adapter_id] = self._read(adapter_id, path)
        self._kept.pop(adapter_id, None)
        self._kept[adapter_id] = adapter
        self._keep_at_most(self._max_adapters)
        return adapter

    def _keep_at_most(self, num: int) -> None:
        while len(self._kept) > num:
            del self._kept[next(iter(self._kept))]

    def _read(self, adapter_id: str, path: Path) -> LoraAdapter:
        """Raises ConfigError."""
        with torch.inference_mode():
            weights = read_lora_weights(path, self._dtype, self._max_rank)
            try:
                return LoraAdapter(adapter_id, self._make(weights))
            except torch.OutOfMemoryError:
                raise ConfigError("the GPU has no memory left for a LoRA adapter") from None

    def drop(self, adapter_id: str) -> None:
        """Without effect when it is not there."""
        self._paths.pop(adapter_id, None)
        self._kept.pop(adapter_id, None)
        self._errors.pop(adapter_id, None)
