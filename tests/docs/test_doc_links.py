"""Every relative link of every Markdown page leads to a file, and to a heading in it."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.local_stack import REPOSITORY
from tests.docs.markdown_page import MarkdownPage

_LEFT_OUT = ("node_modules", "build", "dist")


def pages() -> list[Path]:
    found = [
        path
        for path in sorted(REPOSITORY.rglob("*.md"))
        if not any(
            part.startswith(".") or part in _LEFT_OUT for part in path.relative_to(REPOSITORY).parts
        )
    ]
    assert len(found) > 15
    return found


def test_links_lead_somewhere() -> None:
    anchors = {path: MarkdownPage.read(path).anchors for path in pages()}
    broken = []
    for path in anchors:
        for line, target in MarkdownPage.read(path).links:
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists() or (anchor and anchor not in anchors.get(there, ())):
                broken.append(f"{path.relative_to(REPOSITORY)}:{line}: {target}")
    assert not broken, "\n".join(["links that lead nowhere:", *broken])


def test_every_page_of_docs_is_in_its_index() -> None:
    index = REPOSITORY / "docs" / "README.md"
    listed = {target.partition("#")[0] for _, target in MarkdownPage.read(index).links}
    missing = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - listed - {index.name}
    assert not missing, f"docs/README.md does not link {sorted(missing)}"


def test_a_link_to_nowhere_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `name` & more\n\n[x](there.md#what) `[no](link.md)`\n\n# A name & more\n")
    read = MarkdownPage.read(page)
    assert read.links == ((3, "there.md#what"),)
    assert read.anchors == {"a-name--more", "a-name--more-1"}
