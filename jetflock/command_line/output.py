"""What commands print: JSON, or a table that is for a person or for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

_KIB = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def print_json(value: object) -> None:
    """Indented."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], if_empty: str) -> None:
    """A table for a person; lines with tabs, without a head, for a program."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(row) + "\n")
        return
    _print_for_person(columns, rows, if_empty)


def _print_for_person(columns: Sequence[str], rows: Sequence[Sequence[str]], if_empty: str) -> None:
    # They take a fifth of the start of a command whose output a program reads.
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not rows:
        console.print(if_empty)
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def num_bytes_text(num_bytes: int) -> str:
    """The number with three digits: `1.05 GiB`."""
    if num_bytes < _KIB:
        return f"{num_bytes} B"
    value, unit = num_bytes / _KIB, 0
    while value >= _KIB and unit < len(_UNITS) - 1:
        value, unit = value / _KIB, unit + 1
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {_UNITS[unit]}"
