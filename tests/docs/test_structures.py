"""docs/structures.md lists the packages that there are, as their docstrings describe them."""

from __future__ import annotations

import re

from bench.structures import PAGE, ROOT, head_of_page, lists


def test_the_lists_are_those_of_the_docstrings() -> None:
    assert PAGE.read_text() == f"{head_of_page()}{lists()}\n", "run: make house ARGS=--structures"


def test_every_package_has_a_sentence() -> None:
    rows = re.findall(r"^- `([^`]+)/`: (.*)$", lists(), re.MULTILINE)
    assert len(rows) > 80
    assert not [package for package, text in rows if not text.endswith(".") or len(text) < 20]


def test_the_walk_names_at_most_twenty_packages_and_all_exist() -> None:
    named = set(re.findall(r"`([a-z_/]+)/`", head_of_page()))
    assert 10 <= len(named) <= 20
    assert not [package for package in named if not (ROOT / package / "__init__.py").is_file()]
