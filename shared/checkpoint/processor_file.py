"""An operator's file of logits processors: what it names, read without running it."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
PARAMETERS = ("params", "prompt_ids", "output_ids")


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """Its public functions are processors, by their names.

    What they say must be a function of their arguments: whoever goes on with a request asks them
    anew. A class would keep something, and is refused.
    """

    path: Path
    source: str
    names: tuple[str, ...]  # in the order of the file

    @classmethod
    def read(cls, place: str) -> Self:
        """Raises ConfigError."""
        path = Path(place).expanduser()
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{_named(path)} has more than {MAX_FILE_BYTES} bytes")
            source = path.read_text(encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"{_named(path)}: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{_named(path)} is no text in UTF-8") from exc
        return cls(path, source, _names(path, source))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


def _names(path: Path, source: str) -> tuple[str, ...]:
    try:
        tree = ast.parse(source, str(path))
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{_named(path)} is no Python: {exc}") from exc
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            raise ConfigError(
                f"{_named(path)}: {node.name} is a class, which keeps something between tokens; a "
                "processor is a function, so that any worker can go on"
            )
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        if isinstance(node, ast.AsyncFunctionDef) or _parameters(node) != PARAMETERS:
            raise ConfigError(
                f"{_named(path)}: {node.name} must be 'def {node.name}({', '.join(PARAMETERS)})'; "
                "what is no processor is named with an underscore"
            )
        names.append(node.name)
    if not names:
        raise ConfigError(f"{_named(path)} defines no function {PARAMETERS}")
    return tuple(dict.fromkeys(names))


def _parameters(node: ast.FunctionDef) -> tuple[str, ...] | None:
    """None where it has others than plain ones."""
    given = node.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
        return None
    return tuple(each.arg for each in (*given.posonlyargs, *given.args))


def _named(path: Path) -> str:
    return f"logits_processors {str(path)!r}"
