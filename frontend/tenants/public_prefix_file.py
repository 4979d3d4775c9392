"""The file of `--shared-prefixes`: beginnings of prompts that are no secret of any tenant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from frontend.tenants.yaml_fields import compose, fields_of, line_of, mappings_of, read_struct
from shared.errors import ConfigError

_Filled = Annotated[str, msgspec.Meta(min_length=1)]
_LIST = "prefixes"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text alone: of an image nobody can say what its tokens stand for."""

    role: _Filled
    content: str


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    model: _Filled
    text: _Filled | None = None
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DeclaredPrefix(msgspec.Struct, frozen=True):
    """What prompts of a model may begin with: a text, or the first messages of a chat."""

    where: str  # file and line
    model: str  # by the name that clients give
    text: str = ""
    chat: dict[str, Any] | None = None  # the fields of a body


def read_prefix_file(path: Path) -> tuple[DeclaredPrefix, ...]:
    """Reads YAML or JSON. Raises ConfigError, which names line and field."""
    root = compose(path, "shared prefixes")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: must hold a mapping with the list {_LIST!r}")
    declared = []
    for name, (line, node) in fields_of(path, root).items():
        if name != _LIST:
            raise ConfigError(f"{path}:{line}: unknown field {name!r}, must be {_LIST!r}")
        declared += [_declared(path, entry) for entry in mappings_of(path, name, line, node)]
    if not declared:
        raise ConfigError(f"{path}: declares no prefix; list them under {_LIST!r}")
    return tuple(declared)


def _declared(path: Path, node: yaml.MappingNode) -> DeclaredPrefix:
    where = f"{path}:{line_of(node)}"
    entry = read_struct(path, node, _Entry)
    if (entry.text is None) == (entry.messages is None):
        raise ConfigError(f"{where}: the entry of {entry.model!r} needs 'text' or 'messages'")
    if entry.text is not None:
        for name in ("tools", "chat_template_kwargs"):
            if getattr(entry, name) is not None:
                raise ConfigError(f"{where}: field {name!r} goes with 'messages', not with 'text'")
        return DeclaredPrefix(where, entry.model, text=entry.text)
    chat: dict[str, Any] = {"messages": msgspec.to_builtins(entry.messages)}
    if entry.tools is not None:
        chat["tools"] = entry.tools
    if entry.chat_template_kwargs is not None:
        chat["chat_template_kwargs"] = entry.chat_template_kwargs
    return DeclaredPrefix(where, entry.model, chat=chat)
