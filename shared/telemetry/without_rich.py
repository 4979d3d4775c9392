"""Keeps rich out of roles: they draw nothing, and libraries that do import it where it is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_rich() -> Iterator[None]:
    """What is imported inside finds rich as little as if it were not installed.

    It takes up to a fifth of a role's start, and 3 MB. Who imports it later gets it.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    try:
        yield
    finally:
        if modules["rich"] is None:
            del modules["rich"]
