"""Reads the phrase files in `texts/`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Section:
    """One `[name]` of a phrase file: its lines, split at `|`, and what follows `=>`."""

    lines: tuple[tuple[str, ...], ...]
    answers: tuple[str, ...]

    @property
    def phrases(self) -> tuple[str, ...]:
        """All phrases, whatever their line."""
        return tuple(phrase for line in self.lines for phrase in line)


@cache
def read_sections(file_name: str) -> dict[str, Section]:
    """The sections of a file by name; lines that start with `# ` are comments."""
    text = (Path(__file__).parent / "texts" / file_name).read_text(encoding="utf-8")
    sections: dict[str, Section] = {}
    for block in text.split("\n[")[1:]:
        name, body = block.split("]\n", 1)
        rows = [row for row in body.splitlines() if row.strip() and not row.startswith("# ")]
        sections[name] = Section(
            lines=tuple(_split(row) for row in rows if not row.startswith("=>")),
            answers=tuple(_unescape(row[2:]) for row in rows if row.startswith("=>")),
        )
    return sections


@cache
def phrases(file_name: str, section: str) -> tuple[str, ...]:
    """All phrases of one section."""
    return read_sections(file_name)[section].phrases


def _split(row: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in row.split("|"))


def _unescape(answer: str) -> str:
    return answer.strip().replace("\\n", "\n")
