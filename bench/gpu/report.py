"""Results as they come: a line of JSON each, so that a run that is cut has told what it knew."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Report:
    """Prints, and appends to a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._begin = time.monotonic()

    def add(self, stage: str, **facts: Any) -> None:
        """Numbers are rounded to four digits."""
        rounded = {name: _rounded(value) for name, value in facts.items()}
        line = json.dumps(
            {"stage": stage, "at_s": round(time.monotonic() - self._begin, 1)} | rounded
        )
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
