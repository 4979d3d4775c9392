"""Results as they come: a line of JSON each, so that a run that is cut has told what it knew."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Report:
    """Prints them, keeps them, and writes them to a file that the next tasks read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: list[dict[str, Any]] = []
        self._begin = time.monotonic()
        path.write_text("")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def add(self, result: dict[str, Any]) -> None:
        """Numbers are rounded to four digits."""
        rounded = {name: _rounded(value) for name, value in result.items()}
        self.results.append(rounded)
        line = json.dumps(rounded | {"at_s": round(self.elapsed_s, 1)})
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
