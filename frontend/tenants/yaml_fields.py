"""Mappings of a YAML or JSON file as structs, with errors that say the line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from shared.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_MAX_CHARACTERS = 16 * 1024**2


def compose(path: Path, what: str) -> yaml.Node | None:
    """The root of the file that holds this; None when it is empty. Raises ConfigError."""
    try:
        with path.open() as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the {what} in {path}: {exc}") from exc
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{path}: more than {_MAX_CHARACTERS} characters are no {what}")
    try:
        # JSON is YAML, but for tabs between its tokens.
        return yaml.compose(text.expandtabs(), yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{where}: {getattr(exc, 'problem', exc)}") from exc


def line_of(node: yaml.Node) -> int:
    """Counted from 1."""
    return int(node.start_mark.line) + 1


def fields_of(path: Path, node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
    """The line and the value of each field. Raises ConfigError where one is given twice."""
    found: dict[str, tuple[int, yaml.Node]] = {}
    for name, value in node.value:
        line = line_of(name)
        if name.value in found:
            raise ConfigError(f"{path}:{line}: field {name.value!r} is given twice")
        found[name.value] = (line, value)
    return found


def mappings_of(path: Path, name: str, line: int, node: yaml.Node) -> list[yaml.MappingNode]:
    """The entries of the list in a field. Raises ConfigError."""
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{path}:{line}: {name!r} must be a list")
    found = []
    for entry in node.value:
        if not isinstance(entry, yaml.MappingNode):
            raise ConfigError(
                f"{path}:{line_of(entry)}: an entry of {name!r} must be a mapping of fields"
            )
        found.append(entry)
    return found


def read_struct(
    path: Path, node: yaml.MappingNode, kind: type[T], secret: Collection[str] = ()
) -> T:
    """Raises ConfigError at the line of the wrong field; values in `secret` are not shown."""
    fields = fields_of(path, node)
    known = kind.__struct_fields__
    values: dict[str, Any] = {}
    for name, (line, value) in fields.items():
        if name not in known:
            names = ", ".join(known)
            raise ConfigError(f"{path}:{line}: unknown field {name!r}, must be one of {names}")
        values[name] = yaml.SafeLoader("").construct_object(value, deep=True)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$.")
        name = where.rstrip("`").partition("[")[0]
        line = fields[name][0] if name in fields else line_of(node)
        shown = "" if name in ("", *secret) else f" ({values.get(name)!r})"
        raise ConfigError(f"{path}:{line}: {name or 'entry'}{shown}: {what}") from exc
