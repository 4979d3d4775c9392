"""Columns of text, aligned: the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """The first column is left-aligned, the others right."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    return [
        gap.join(
            cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def number(value: float | None, digits: int = 2) -> str:
    """Grouped; as many digits as one reads."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.1f}"
