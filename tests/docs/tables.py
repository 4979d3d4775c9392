"""Tables of Markdown pages, as tests compare them with the code."""

from __future__ import annotations

import re
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")


def table_under(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    lines = page.read_text().split(f"\n{heading}\n", 1)[1].splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def codes_in(cell: str) -> list[str]:
    """What a cell has between backticks."""
    return _CODE.findall(cell)
