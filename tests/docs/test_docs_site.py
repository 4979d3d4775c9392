"""Pages of the repository become pages of the site: their links, their lists, all of them."""

from __future__ import annotations

import pytest
import yaml

from deploy.docs_site.hooks import BESIDE, site_text
from tests.deploy.local_stack import REPOSITORY


@pytest.mark.parametrize(
    ("source", "written", "wanted"),
    [
        ("docs/a.md", "[b](b.md#c)", "[b](b.md#c)"),
        ("docs/a.md", "[d](d/b.md)", "[d](d/b.md)"),
        ("docs/d/a.md", "[b](b.md) [c](../c.md#d)", "[b](b.md) [c](../c.md#d)"),
        ("docs/d/a.md", "[r](../../README.md)", "[r](../about.md)"),
        ("docs/a.md", "[r](../README.md#x)", "[r](about.md#x)"),
        (
            "README.md",
            "see [`b`](docs/b.md), `[no](docs/b.md)`",
            "see [`b`](b.md), `[no](docs/b.md)`",
        ),
        ("README.md", "![p](docs/images/p.png)", "![p](images/p.png)"),
        ("README.md", "[docs](docs)", "[docs](README.md)"),
        ("docs/a.md", "[code](../worker/x.py)", "code"),
        ("docs/a.md", "[w](https://x.org/y) [h](#here)", "[w](https://x.org/y) [h](#here)"),
        ("docs/a.md", "text\n- one\n  more\n- two", "text\n\n- one\n    more\n- two"),
        ("docs/a.md", "- a\n  - b\n    c\n- d\n\ne\n  f", "- a\n    - b\n        c\n- d\n\ne\n  f"),
        (
            "docs/a.md",
            "1. a\n   ```\n   x\n     y\n   ```",
            "1. a\n     ```\n     x\n       y\n     ```",
        ),
        ("docs/a.md", "```\ntext\n- one [b](../x)\n```", "```\ntext\n- one [b](../x)\n```"),
    ],
)
def test_pages_are_read_as_in_the_repository(source: str, written: str, wanted: str) -> None:
    assert site_text(written, source) == wanted


def test_source_files_are_linked_where_they_can_be_looked_at() -> None:
    text = site_text("[code](../worker/x.py)", "docs/a.md", "https://git.example/tree/main/")
    assert text == "[code](https://git.example/tree/main/worker/x.py)"


def test_every_page_is_in_the_navigation() -> None:
    lines = (REPOSITORY / "mkdocs.yml").read_text().splitlines()
    nav = yaml.safe_load("\n".join(lines[lines.index("nav:") :]))["nav"]
    listed = [
        page
        for group in nav
        for found in group.values()
        for page in ([found] if isinstance(found, str) else found)
    ]
    docs = REPOSITORY / "docs"
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *BESIDE.values()])
    assert all((REPOSITORY / name).is_file() for name in BESIDE)
