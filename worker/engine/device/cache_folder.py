"""Where an engine keeps what took long to make, for the next one of this user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """It may not exist yet. None where there is neither XDG_CACHE_HOME nor a home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "jetflock"
    except RuntimeError:
        return None
