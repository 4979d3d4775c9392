"""`make house ARGS=--structures`: writes the lists of docs/structures.md from docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/structures.md"
MARKER = "<!-- From here on made by: make house ARGS=--structures -->\n"
GROUPS = ("frontend", "worker", "worker/engine", "detok", "shared", "jetflock", "deploy")
_START = "This package "


def head_of_page() -> str:
    """The part of the page that is written by hand, with the marker at its end."""
    head, marker, _ = PAGE.read_text().partition(MARKER)
    return head + marker


def lists() -> str:
    """A heading and a list for each group of packages, one line a package."""
    found = sorted(_packages(), key=lambda package: (GROUPS.index(_group_of(package)), package))
    return "\n".join(
        f"\n## {group}/\n\n" + "\n".join(map(_line, packages))
        for group, packages in groupby(found, key=_group_of)
    )


def write_page() -> None:
    PAGE.write_text(f"{head_of_page()}{lists()}\n")


def _packages() -> Iterator[str]:
    for group in GROUPS:
        if "/" not in group:
            for path in (ROOT / group).rglob("__init__.py"):
                yield path.parent.relative_to(ROOT).as_posix()


def _group_of(package: str) -> str:
    return max(group for group in GROUPS if f"{package}/".startswith(f"{group}/"))


def _line(package: str) -> str:
    return f"- `{package}/`: {_what_it_does(ROOT / package / '__init__.py')}"


def _what_it_does(path: Path) -> str:
    """The first paragraph of a package's docstring, without the words that all would begin with."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    text = " ".join(docstring.partition("\n\n")[0].split()).removeprefix(_START)
    return text[:1].upper() + text[1:]
