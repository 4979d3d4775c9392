"""The file of `--api-keys-file`: tenants, what they may do, and their API keys.

It is read again when it has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from frontend.tenants.auth import ApiKey, ApiKeys, nats_user_digest
from frontend.tenants.caller_gate import CALLER_PATTERN
from frontend.tenants.tenant import Tenant
from frontend.tenants.yaml_fields import compose, fields_of, line_of, mappings_of, read_struct
from shared.errors import ConfigError
from shared.telemetry.log import get_logger

TenantId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Secret = Annotated[str, msgspec.Meta(min_length=1)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]

NatsUser = Annotated[str, msgspec.Meta(pattern=CALLER_PATTERN)]

_SECRET = ("key", "keys")
_INTERVAL_S = 1.0

log = get_logger(__name__)

FileState = tuple[int, int, int]


class _Key(msgspec.Struct, frozen=True):
    key: Secret | None = None
    key_sha256: Digest | None = None
    nats_user: NatsUser | None = None


class _Rights(msgspec.Struct, frozen=True, kw_only=True):
    max_concurrent: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    cache_group: TenantId | None = None
    operator: bool = False
    reads_kept: bool = False

    def tenant(self, tenant_id: str) -> Tenant:
        return Tenant(
            tenant_id,
            weight=self.weight,
            max_concurrent=self.max_concurrent,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            cache_group=self.cache_group or "",
            is_operator=self.operator,
            reads_kept=self.reads_kept,
        )


class _TenantEntry(_Rights, frozen=True, kw_only=True):
    id: TenantId
    keys: Annotated[list[Any], msgspec.Meta(min_length=1)]


class _KeyEntry(_Rights, frozen=True, kw_only=True):
    """A tenant with one key, whose id is the name."""

    name: TenantId
    key: Secret | None = None
    key_sha256: Digest | None = None


class _KeyFile:
    """What was read so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.keys: list[ApiKey] = []
        self._lines: dict[str, int] = {}  # of tenants, by id
        self._holders: dict[bytes, str] = {}  # tenants' ids, by digest of a key

    def add_tenant(self, node: yaml.MappingNode) -> None:
        """An entry of `tenants`. Raises ConfigError."""
        entry = read_struct(self._path, node, _TenantEntry, _SECRET)
        self._note(entry.id, line_of(node), "id")
        tenant = entry.tenant(entry.id)
        line, keys = fields_of(self._path, node)["keys"]
        for key in mappings_of(self._path, "keys", line, keys):
            self._add_key(tenant, line_of(key), read_struct(self._path, key, _Key, _SECRET))

    def add_key(self, node: yaml.MappingNode) -> None:
        """An entry of `keys`, outside of `tenants`. Raises ConfigError."""
        entry = read_struct(self._path, node, _KeyEntry, _SECRET)
        self._note(entry.name, line_of(node), "name")
        key = _Key(entry.key, entry.key_sha256)
        self._add_key(entry.tenant(entry.name), line_of(node), key)

    def _note(self, tenant_id: str, line: int, field: str) -> None:
        if tenant_id in self._lines:
            before = self._lines[tenant_id]
            raise ConfigError(
                f"{self._path}:{line}: {field} {tenant_id!r} is taken by line {before}"
            )
        self._lines[tenant_id] = line

    def _add_key(self, tenant: Tenant, line: int, key: _Key) -> None:
        where = f"{self._path}:{line}"
        if sum(value is not None for value in (key.key, key.key_sha256, key.nats_user)) != 1:
            raise ConfigError(
                f"{where}: the key of {tenant.id!r} needs one of 'key', 'key_sha256' and "
                "'nats_user'"
            )
        digest = _digest(key)
        if digest in self._holders:
            raise ConfigError(
                f"{where}: {tenant.id!r} has the same key as {self._holders[digest]!r}"
            )
        self._holders[digest] = tenant.id
        self.keys.append(ApiKey(digest, tenant))


def read_key_file(path: Path) -> list[ApiKey]:
    """The keys in a YAML or JSON file. Raises ConfigError, which names line and field."""
    root = compose(path, "API keys")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: must hold a mapping with the list 'tenants'")
    file = _KeyFile(path)
    readers = {"tenants": file.add_tenant, "keys": file.add_key}
    for name, (line, node) in fields_of(path, root).items():
        if name not in readers:
            raise ConfigError(f"{path}:{line}: unknown field {name!r}, must be 'tenants' or 'keys'")
        for entry in mappings_of(path, name, line, node):
            readers[name](entry)
    if not file.keys:
        raise ConfigError(f"{path}: holds no API key; list them under 'tenants'")
    return file.keys


def _digest(key: _Key) -> bytes:
    if key.nats_user is not None:
        return nats_user_digest(key.nats_user)
    if key.key is not None:
        return hashlib.sha256(key.key.encode()).digest()
    assert key.key_sha256 is not None
    return bytes.fromhex(key.key_sha256)


class KeyWatch:
    """Looks at the file every second; also one behind a link that is changed, as in Kubernetes.

    A file that cannot be used changes nothing: the keys before it stay.
    """

    def __init__(self, path: Path, keys: ApiKeys, read: Callable[[], Sequence[ApiKey]]) -> None:
        self._path = path
        self._keys = keys
        self._read = read
        self._state = _state(path)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            state = _state(self._path)
            if state != self._state:
                self._state = state
                self._reload()

    def _reload(self) -> None:
        try:
            keys = self._read()
        except ConfigError as exc:
            log.error("api_keys_not_reloaded", error=str(exc))
        else:
            self._keys.replace(keys)
            log.info("api_keys_reloaded", num_keys=len(keys))


def _state(path: Path) -> FileState | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
