"""A folder in Hugging Face format that is made of a model in another layout, in the user's cache.

It has links to the weights, and may be deleted when nothing serves from it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shared.errors import ConfigError


def made_folder(
    kind: str,
    layout: int,
    parts: Iterable[Path],
    make: Callable[[], Mapping[str, bytes]],
    links: Iterable[Path],
) -> Path:
    """`make` gives its files by name; `links` are what it links to. Its name tells the places,
    lengths and times of `parts`, so that one of replaced parts has another name; `layout` counts
    up when its files change.

    Raises ConfigError, in a sentence.
    """
    folder = _cache() / kind / _fingerprint(layout, parts)
    if (folder / "config.json").is_file():
        return folder
    files = make()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as outer:
            made = Path(outer) / "checkpoint"
            _fill(made, files, links)
            _move(made, folder)
    except OSError as exc:
        raise ConfigError(
            f"cannot write {folder} ({exc}): name a folder by XDG_CACHE_HOME"
        ) from exc
    return folder


def _fill(folder: Path, files: Mapping[str, bytes], links: Iterable[Path]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for each in links:
        (folder / each.name).symlink_to(each.resolve())


def _move(made: Path, folder: Path) -> None:
    """Whoever makes it at the same time makes the same: the first stays."""
    try:
        made.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise


def _fingerprint(layout: int, parts: Iterable[Path]) -> str:
    digest = hashlib.sha256(str(layout).encode())
    for part in parts:
        try:
            status = part.stat()
        except OSError as exc:
            raise ConfigError(f"cannot read {part}: {exc.strerror}") from exc
        told = f"{part.absolute()}:{status.st_size}:{status.st_mtime_ns}"
        digest.update(told.encode())
    return digest.hexdigest()[:24]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "jetflock"
    except RuntimeError as exc:
        raise ConfigError("there is no home directory: set XDG_CACHE_HOME") from exc
