"""Where a worker keeps the files of its LoRA adapters, and which it was started with."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shared.catalog.adapter_catalog import AdapterCatalog
from shared.checkpoint.lora_files import LoraFiles
from worker.weights.lora_flag import split_lora

_PREFIX = "jetflock-lora-"
_LOCK = "lock"


@contextlib.contextmanager
def locked_folder(prefix: str) -> Iterator[Path]:
    """A new folder of this process alone, which holds a lock in it as long as it lives.

    The lock goes with the process, however that ends: so `remove_dead_folders` knows the living.
    """
    with contextlib.ExitStack() as stack:
        folder = _made(stack, prefix)
        while folder is None:
            folder = _made(stack, prefix)
        yield folder


def _made(stack: contextlib.ExitStack, prefix: str) -> Path | None:
    """None when somebody who starts beside us took it for a dead one's, before it was locked."""
    folder = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
    )
    lock = stack.enter_context((folder / _LOCK).open("wb"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder if os.fstat(lock.fileno()).st_nlink else None


def remove_dead_folders(prefix: str) -> None:
    """Remove folders of this user whose processes have ended, and none that nobody locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # somebody else removes it, or may and we may not
            if path.lstat().st_uid == os.getuid():
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    """Raises BlockingIOError while its process lives."""
    with path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path.parent)


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
