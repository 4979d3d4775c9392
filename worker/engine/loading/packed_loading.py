"""Loads a decoder for our C++: from its packed form on disk where it is kept there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch

from shared.errors import ConfigError
from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.device.cache_folder import cache_folder
from worker.engine.device.torch_threads import torch_threads
from worker.engine.loading.memory_check import weight_bytes
from worker.engine.loading.model_loader import LoadSite
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.loader import CodeReader
from worker.engine.models.model_loading import open_weights
from worker.engine.models.model_setup import ModelSetup
from worker.engine.native.native_choice import wanted_inputs
from worker.engine.native.native_library import NativeLibrary
from worker.engine.native.native_weights import NativeWeights, PlacedWeights
from worker.engine.native.weight_memory import FileMemory
from worker.engine.packed.errors import PackedError
from worker.engine.packed.packed_file import PackedWriter
from worker.engine.packed.packed_folder import PackedFolder
from worker.engine.packed.packed_key import Sources, packed_key
from worker.engine_link.engine_config import EngineConfig

MIN_KEPT_BYTES = 32 << 20  # smaller weights are packed before anybody has waited


def check_packed(config: EngineConfig, *, is_native: bool) -> None:
    """Raises ConfigError where a packed form must be kept, and there is none."""
    if config.packed_weights != "always":
        return
    if config.load_format == "dummy":
        raise _no_packed("load_format=dummy has weights of no file")
    if not is_native:
        raise _no_packed("our C++ alone has such a form, and this model is not computed by it here")


class PackedLoad(NamedTuple):
    """Weights, and what is told of how they came."""

    weights: NativeWeights
    remark: str = ""
    num_failures: int = 0  # of the packed form


class NativeLoader:
    """Reads a checkpoint's weights once, or as often as its packed form cannot be had."""

    def __init__(self, site: LoadSite, setup: ModelSetup, library: NativeLibrary) -> None:
        assert isinstance(setup.config, DecoderConfig), "the library was chosen for it"
        self._config = site.config
        self._path = Path(site.config.model_path)
        self._progress = site.progress
        self._model = setup.config
        self._setup = setup
        self._library = library
        self._inputs = wanted_inputs(site.config)
        self._num_threads = torch.get_num_threads()  # that read and pack, each by itself

    def load(self) -> PackedLoad:
        """Raises ConfigError."""
        folder = self._folder()
        if folder is None:
            return PackedLoad(self._read())
        self._progress.enter("digest weights")
        sources = Sources(self._path)
        key = packed_key(
            folder.digest_of(sources),
            self._library.kernel_set.name,
            str(self._model.made_format),
            str(self._inputs),
        )
        self._progress.enter(LOAD_WEIGHTS)
        mapped = folder.get(key, self._num_bytes, lambda writer: self._build(writer, sources))
        num_failures = len(folder.failures)
        if mapped is None:
            remark = f"weights have no packed form on disk: {folder.failures[-1]}"
            return PackedLoad(self._read(), remark, num_failures)
        placed = PlacedWeights.from_bytes(mapped.contents, mapped.address)
        self._progress.on_weights(1.0)
        return PackedLoad(
            NativeWeights(self._library, self._model, placed, mapped),
            f"weights are mapped from their packed form, {mapped.num_bytes / (1 << 30):.2f} GiB "
            "of disk",
            num_failures,
        )

    def _folder(self) -> PackedFolder | None:
        """None where no packed form is wanted."""
        config = self._config
        if config.packed_weights == "off" or config.load_format == "dummy":
            return None
        is_quantized = bool(self._model.quantization) or self._model.made_format is not None
        is_worth_it = is_quantized and self._num_bytes >= MIN_KEPT_BYTES
        if config.packed_weights == "auto" and not is_worth_it:
            return None
        base = Path(config.packed_folder).expanduser() if config.packed_folder else cache_folder()
        if base is None and config.packed_weights == "auto":
            return None
        if base is None:
            raise _no_packed("there is no home directory; set packed_folder or XDG_CACHE_HOME")
        return PackedFolder(
            base / "packed", config.packed_max_bytes, self._num_threads, self._library.checksum
        )

    @property
    def _num_bytes(self) -> int:
        """About, of all weights as they are packed."""
        return weight_bytes(self._model, self._setup.dtype, in_codes=True)

    def _read(self) -> NativeWeights:
        self._progress.enter(LOAD_WEIGHTS)
        with torch_threads(1), self._open() as reader:
            return NativeWeights.read(
                self._library, self._model, reader, self._inputs, self._num_threads
            )

    def _build(self, writer: PackedWriter, sources: Sources) -> bytes:
        """Raises ConfigError, OSError, NoRoom; PackedError where somebody writes to the sources."""
        with torch_threads(1), self._open() as reader:
            memory = FileMemory(writer)
            placed = PlacedWeights.read(
                self._library, self._model, reader, memory, self._inputs, self._num_threads
            )
        if not sources.are_unchanged:
            raise PackedError(f"a file in {self._path} was written to while it was read")
        return placed.to_bytes()

    def _open(self) -> AbstractContextManager[CodeReader]:
        load_format, on_weights = self._config.load_format, self._progress.on_weights
        return open_weights(
            self._model,
            self._path,
            load_format,
            self._setup.dtype,
            on_weights,
            num_threads=self._num_threads,
        )


def _no_packed(reason: str) -> ConfigError:
    return ConfigError(f"packed_weights=always is not possible: {reason}")
