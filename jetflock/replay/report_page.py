"""The report: on the terminal, as JSON, or as a page with the texts of both runs side by side."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from jetflock.command_line.output import print_json
from jetflock.replay.comparison import NAMES, num_equal_chars
from jetflock.replay.journal import Journal
from shared.errors import ConfigError

_MAX_SHOWN = 500  # comparisons, those that part first at their head
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }
table { border-collapse: collapse } td { padding: .1rem 1.5rem .1rem 0 }
section { border-top: 1px solid #ccc; margin-top: 1rem; padding-top: .5rem }
section > div { display: grid; gap: 1rem; grid-template-columns: 1fr 1fr }
pre { font: 13px/1.5 ui-monospace, monospace; margin: 0; overflow-wrap: anywhere;
  white-space: pre-wrap }
mark { background: #ffe2a8; color: inherit }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd }
  mark { background: #664500 } section { border-color: #444 } }
"""
# Texts are what clients and models have written: nothing of them is run, nothing is fetched.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(journal: Journal, title: str, html: Path | None, *, as_json: bool) -> None:
    """Prints it, and writes the page where one is wanted. Raises ConfigError."""
    if as_json:
        print_json(journal.report.facts())
    else:
        sys.stdout.write(f"{journal.report.words()}\n")
    if html is not None:
        try:
            write_page(html, journal, title)
        except OSError as exc:
            raise ConfigError(f"html {html}: {exc.strerror}") from exc


def write_page(path: Path, journal: Journal, title: str) -> None:
    """It needs nothing else. Raises OSError."""
    path.touch(0o600)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_page(journal, title))


def _page(journal: Journal, title: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n"
    yield "<table>\n"
    for row in journal.report.rows():
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
    yield "</table>\n"
    shown = heapq.nsmallest(_MAX_SHOWN, journal.entries(), key=_parts_first)
    if len(shown) < journal.report.num_compared:
        yield f"<p>The {len(shown)} that part first, of {journal.report.num_compared}.</p>\n"
    for entry in shown:
        yield from _section(entry)


def _parts_first(entry: dict[str, Any]) -> tuple[bool, int]:
    return entry["equal"], entry["parts_at"] or 0


def _section(entry: dict[str, Any]) -> Iterator[str]:
    at = entry["parts_at"]
    parts = "equal" if entry["equal"] else f"part at token {at}"
    choice = f", choice {entry['choice']}" if entry["choice"] else ""
    yield f"<section><h2>{escape(entry['id'])}{choice}: {parts}</h2>\n<div>\n"
    texts = [entry[name]["text"] for name in NAMES]
    same = num_equal_chars(*texts)
    for name, text in zip(NAMES, texts, strict=True):
        run = entry[name]
        head = f"{name}: {run['model']}, {run['num_tokens']} tokens, {run['finish_reason']}"
        rest = f"<mark>{escape(text[same:])}</mark>" if text[same:] else ""
        yield f"<div><p>{escape(head)}</p><pre>{escape(text[:same])}{rest}</pre></div>\n"
    yield "</div></section>\n"
