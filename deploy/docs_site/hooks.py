"""Pages that are written for a repository, as MkDocs reads them: links, lists, pages beside docs/.

It runs in an environment of its own, without jetflock.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
# Pages beside docs/, and what they are called in the site, whose front page is docs/README.md.
BESIDE = {
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
# Where the repository's files can be looked at; without it links to them become plain text.
_SOURCE_URL = "DOCS_SOURCE_URL"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"`+[^`]*`+")
_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages beside docs/."""
    from mkdocs.structure.files import File  # late: the tests have no MkDocs

    for name, page in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(REPOSITORY / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Each page as MkDocs reads it."""
    own = {name: path for path, name in BESIDE.items()}
    source = own.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_text(markdown, source, os.environ.get(_SOURCE_URL))


def site_text(markdown: str, source: str, source_url: str | None = None) -> str:
    """`source` is the page's path in the repository."""

    def moved(match: re.Match[str]) -> str:
        return _moved(match, source, source_url)

    return "\n".join(
        line if is_code else _outside_code(line, moved) for line, is_code in _lines(markdown)
    )


def _outside_code(line: str, moved: Any) -> str:
    """Links whose words are code stay links; what looks like one within code is none."""
    spans = [match.span() for match in _CODE.finditer(line)]

    def replaced(match: re.Match[str]) -> str:
        within = any(start < match.start() and match.end() <= end for start, end in spans)
        return match[0] if within else str(moved(match))

    return _LINK.sub(replaced, line)


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """The lines, with whether they are code. Python-Markdown wants an empty line before a list, and
    what is below an item four places deeper, where two or three are written here.
    """
    is_code, is_in_list, previous, deeper = False, False, "", ""
    for line in markdown.splitlines():
        is_fence = _FENCE.match(line) is not None
        if line.strip() and not is_code:
            depth = len(line) - len(line.lstrip())
            is_in_list = _ITEM.match(line) is not None if not depth else is_in_list
            deeper = " " * (2 * (depth // 2 or 1)) if depth and is_in_list else ""
            if not depth and is_in_list and _is_plain_text(previous):
                yield "", False
        yield (f"{deeper}{line}" if line.strip() else line), is_code or is_fence
        is_code ^= is_fence
        previous = line


def _is_plain_text(line: str) -> bool:
    return bool(line.strip()) and not line[0].isspace() and not _ITEM.match(line)


def _moved(match: re.Match[str], source: str, source_url: str | None) -> str:
    bang, words, target = match.groups()
    path, hash_sign, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return match[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = BESIDE.get(there, there.removeprefix("docs/") if there.startswith("docs/") else None)
    if there == "docs":
        page = "README.md"
    if page is not None:
        own = BESIDE.get(source, source.removeprefix("docs/"))
        near = posixpath.relpath(page, posixpath.dirname(own) or ".")
        return f"{bang}[{words}]({near}{hash_sign}{anchor})"
    return words if source_url is None else f"{bang}[{words}]({source_url.rstrip('/')}/{there})"
