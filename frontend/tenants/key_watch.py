"""Reads the API keys again when their file has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from frontend.tenants.auth import ApiKey, ApiKeys
from shared.errors import ConfigError
from shared.telemetry.log import get_logger

_INTERVAL_S = 1.0

log = get_logger(__name__)

FileState = tuple[int, int, int]


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
