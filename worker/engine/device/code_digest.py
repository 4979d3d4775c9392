"""A digest of source code: what old code has made is not taken for what new code would make."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shared import errors

ENGINE_CODE = (Path(__file__).parents[1], Path(errors.__file__).parent)  # worker.engine and shared
_SUFFIXES = (".py", ".h", ".cpp")


def code_digest(folders: Iterable[Path]) -> bytes:
    """A digest of all Python and C++ in these folders and below them, with its names."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES:
                digest.update(f"{path.relative_to(folder)}\n".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()
