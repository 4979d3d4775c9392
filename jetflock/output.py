"""What commands print: JSON, or a table that is for a person or for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def print_json(value: object) -> None:
    """Indented."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], if_empty: str) -> None:
    """A table for a person; lines with tabs, without a head, for a program."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(row) + "\n")
        return
    console = Console()
    if not rows:
        console.print(if_empty)
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
