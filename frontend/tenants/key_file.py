"""The file of `--api-keys-file`: API keys, the names of their holders, and what they may do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from frontend.auth import ApiKey
from frontend.tenants.tenant import Tenant
from shared.errors import ConfigError

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class _KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    key_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    max_concurrent: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    operator: bool = False

    def api_key(self) -> ApiKey:
        """Raises ValueError."""
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("needs 'key' or 'key_sha256', and not both")
        if self.key is not None:
            digest = hashlib.sha256(self.key.encode()).digest()
        else:
            assert self.key_sha256 is not None
            digest = bytes.fromhex(self.key_sha256)
        tenant = Tenant(
            self.name,
            weight=self.weight,
            max_concurrent=self.max_concurrent,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            is_operator=self.operator,
        )
        return ApiKey(digest, tenant)


def read_key_file(path: Path) -> list[ApiKey]:
    """The keys in a YAML or JSON file. Raises ConfigError, which names line and field."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the API keys in {path}: {exc}") from exc
    try:
        # JSON is YAML, but for tabs between its tokens.
        root = yaml.compose(text.expandtabs(), yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{where}: {getattr(exc, 'problem', exc)}") from exc
    return _read_keys(path, root)


def _read_keys(path: Path, root: yaml.Node | None) -> list[ApiKey]:
    keys: list[ApiKey] = []
    names: dict[str, int] = {}
    digests: dict[bytes, str] = {}
    for node in _entries(path, root):
        line = node.start_mark.line + 1
        entry = _entry(path, node)
        try:
            key = entry.api_key()
        except ValueError as exc:
            raise ConfigError(f"{path}:{line}: the key of {entry.name!r} {exc}") from exc
        if entry.name in names:
            raise ConfigError(
                f"{path}:{line}: name {entry.name!r} is taken by line {names[entry.name]}"
            )
        if key.digest in digests:
            raise ConfigError(
                f"{path}:{line}: {entry.name!r} has the same key as {digests[key.digest]!r}"
            )
        names[entry.name], digests[key.digest] = line, entry.name
        keys.append(key)
    return keys


def _entries(path: Path, root: yaml.Node | None) -> list[yaml.MappingNode]:
    """The nodes of the list `keys`. Raises ConfigError."""
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: must hold a mapping with the list 'keys'")
    found: list[yaml.MappingNode] = []
    for name, value in root.value:
        line = name.start_mark.line + 1
        if name.value != "keys":
            raise ConfigError(f"{path}:{line}: unknown field {name.value!r}, must be 'keys'")
        if not isinstance(value, yaml.SequenceNode):
            raise ConfigError(f"{path}:{line}: 'keys' must be a list")
        for node in value.value:
            if not isinstance(node, yaml.MappingNode):
                where = f"{path}:{node.start_mark.line + 1}"
                raise ConfigError(f"{where}: an entry of 'keys' must be a mapping with 'name'")
            found.append(node)
    if not found:
        raise ConfigError(f"{path}: holds no API key; list them under 'keys'")
    return found


def _entry(path: Path, node: yaml.MappingNode) -> _KeyEntry:
    """Raises ConfigError at the line of the field that is wrong."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for name, value in node.value:
        line = name.start_mark.line + 1
        if name.value in lines:
            raise ConfigError(f"{path}:{line}: field {name.value!r} is given twice")
        lines[name.value] = line
        values[name.value] = yaml.SafeLoader("").construct_object(value, deep=True)
    for name, line in lines.items():
        if name not in _KeyEntry.__struct_fields__:
            known = ", ".join(_KeyEntry.__struct_fields__)
            raise ConfigError(f"{path}:{line}: unknown field {name!r}, must be one of {known}")
    try:
        return msgspec.convert(values, _KeyEntry)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$.")
        name = where.rstrip("`")
        line = lines.get(name, node.start_mark.line + 1)
        shown = "" if name in ("", "key") else f" ({values.get(name)!r})"  # keys are secrets
        raise ConfigError(f"{path}:{line}: {name or 'entry'}{shown}: {what}") from exc
