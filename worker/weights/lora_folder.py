"""Where a worker keeps the files of its LoRA adapters, and which it was started with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shared.catalog.adapter_catalog import AdapterCatalog
from shared.checkpoint.lora_files import LoraFiles
from worker.weights.locked_folder import locked_folder, remove_dead_folders
from worker.weights.lora_flag import split_lora

_PREFIX = "jetflock-lora-"


@dataclass(frozen=True, slots=True)
class LoraFolder:
    """A temporary folder."""

    path: Path
    # Names by revision: without these the worker shall not run.
    required: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def lora_folder(
    catalog: AdapterCatalog, pool: str, loras: Sequence[str], max_rank: int, *, may_replace: bool
) -> AsyncIterator[LoraFolder]:
    """Registers the adapters `NAME=PATH` before the worker starts. Raises ConfigError."""
    required = await register_loras(catalog, pool, loras, max_rank, may_replace=may_replace)
    await asyncio.to_thread(remove_dead_folders, _PREFIX)
    with locked_folder(_PREFIX) as folder:
        yield LoraFolder(folder, required)


async def register_loras(
    catalog: AdapterCatalog, pool: str, loras: Sequence[str], max_rank: int, *, may_replace: bool
) -> dict[str, str]:
    """Adapters `NAME=PATH` can be asked for from now on: names by revision. Raises ConfigError."""
    names: dict[str, str] = {}
    for name, path in map(split_lora, loras):
        files = await asyncio.to_thread(LoraFiles.read, path)
        files.check_rank(max_rank)
        await catalog.add(pool, name, files, str(path), may_replace=may_replace)
        names[files.revision] = name
    return names
