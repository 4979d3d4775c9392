"""A volume of its own for the broker's store, and the file that fills it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shared.errors import ConfigError

_CHUNK = b"\0" * (1 << 16)


@contextlib.contextmanager
def small_volume(path: Path, size_mib: int) -> Iterator[Path]:
    """A tmpfs at `path` while the context lasts. Raises ConfigError without the right to mount."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ConfigError(
            f"disk_full needs a small volume, and {' '.join(command)} failed: "
            f"{result.stderr.strip()}; run it as root, or leave disk_full out of --faults"
        )
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Ballast:
    """Takes all the room there is while the context lasts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def fill(cls, folder: Path) -> Ballast:
        path = folder.parent / "ballast"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            for size in (len(_CHUNK), 1):
                with contextlib.suppress(OSError):
                    while file.write(_CHUNK[:size]):
                        pass
        return cls(path)

    def __enter__(self) -> Ballast:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._path.unlink()
