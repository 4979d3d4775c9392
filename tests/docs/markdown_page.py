"""A Markdown page, as far as it promises something: code blocks, links, anchors of headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```+ *(\w*)\s*$")
_COMMENT = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_IMAGE = re.compile(r"!\[[^\[\]]*\]\(([^()\s]+)\)")
_PROMPT = "$ "
RUNNABLE = ("sh", "console", "python")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block that is commands or a program; `excuse` is why it is not run."""

    page: Path
    line: int  # of its fence, from 1
    language: str
    text: str
    excuse: str | None

    @property
    def script(self) -> str:
        """What to run; of a console only what follows the prompts."""
        return _typed(self.text) if self.language == "console" else self.text


@dataclass(frozen=True, slots=True)
class MarkdownPage:
    """`blocks` are those in one of the RUNNABLE languages, `anchors` what `#...` may name."""

    path: Path
    blocks: tuple[CodeBlock, ...]
    links: tuple[tuple[int, str], ...]  # line, target
    anchors: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> MarkdownPage:
        blocks: list[CodeBlock] = []
        links: list[tuple[int, str]] = []
        anchors: list[str] = []
        lines = path.read_text().splitlines()
        at = 0
        excuse: str | None = None
        while at < len(lines):
            line = lines[at]
            if (fence := _FENCE.match(line)) is not None:
                end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
                body = [text.removeprefix(fence[1]) for text in lines[at + 1 : end]]
                language = fence[2] or ("console" if body and body[0].startswith(_PROMPT) else "")
                if language in RUNNABLE:
                    text = "\n".join(body) + "\n"
                    blocks.append(CodeBlock(path, at + 1, language, text, excuse))
                at, excuse = end + 1, None
                continue
            if (comment := _COMMENT.search(line)) is not None:
                excuse = comment[1]
            elif line.strip():
                excuse = None  # it belongs to the block right below it
            if (heading := _HEADING.match(line)) is not None:
                anchors.append(_anchor(heading[1], anchors))
            prose = re.sub(r"`[^`]*`", "", line)
            links += [(at + 1, target) for target in _LINK.findall(prose) + _IMAGE.findall(prose)]
            at += 1
        return cls(path, tuple(blocks), tuple(links), frozenset(anchors))


def _typed(text: str) -> str:
    """The commands of a transcript: behind a prompt, up to a line that ends without backslash."""
    commands: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith(_PROMPT):
            commands.append(line.removeprefix(_PROMPT))
        elif goes_on:
            commands.append(line.removeprefix("> "))
        else:
            continue
        goes_on = line.endswith("\\")
    return "\n".join(commands) + "\n"


def _anchor(heading: str, before: list[str]) -> str:
    """As the renderers of Markdown make it: lower case, hyphens, the second one with a number."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    number = 0
    while (anchor := f"{slug}-{number}" if number else slug) in before:
        number += 1
    return anchor
