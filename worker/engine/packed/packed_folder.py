"""The packed files of this user: built once, bound in size, the one not used for longest goes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from shared.telemetry.log import get_logger
from worker.engine.device.cache_folder import make_private, open_private
from worker.engine.device.cache_lock import cache_lock
from worker.engine.packed.errors import DamagedFile, NoRoom, PackedError
from worker.engine.packed.packed_file import DIGEST_BYTES, Checksum, MappedFile, PackedWriter
from worker.engine.packed.packed_key import Sources

SUFFIX = ".packed"
KNOWN_SUFFIX = ".known"  # the digest of a checkpoint's bytes
MAX_KNOWN = 256  # a few bytes each
LOCK_TIMEOUT_S = 1800.0  # another worker packs the same model
FREE_BYTES = 1 << 30  # left on the disk

Build = Callable[[PackedWriter], bytes]
"""Appends weights, and returns what lies where."""

log = get_logger(__name__)


class PackedFolder:
    """Each failure is kept in `failures` and logged, once; then the weights come from elsewhere."""

    def __init__(self, path: Path, max_bytes: int, num_threads: int, checksum: Checksum) -> None:
        self.path = path
        self.failures: list[str] = []
        self._max_bytes = max_bytes
        self._num_threads = num_threads
        self._checksum = checksum

    def get(self, key: bytes, num_bytes: int, build: Build) -> MappedFile | None:
        """What is kept under `key`, or else what is built now: about `num_bytes`.

        Workers that start together build it once. None where it cannot be had.
        """
        try:
            make_private(self.path)
            mapped = self._map(key)
            if mapped is not None:
                return mapped
            with cache_lock(self._file(key, ".lock"), LOCK_TIMEOUT_S) as is_ours:
                if not is_ours:
                    raise PackedError(f"no lock can be had in {self.path}")
                return self._map(key) or self._build(key, num_bytes, build)
        except (PackedError, OSError) as exc:
            self._note(str(exc))
            return None

    def digest_of(self, sources: Sources) -> bytes:
        """Read from all of their bytes once: then it is known of files that nobody wrote to."""
        glance = sources.glance()
        path = self.path / f"{glance.hex()[:32]}{KNOWN_SUFFIX}"
        try:
            make_private(self.path)
            known = _read_known(path, glance)
        except (PackedError, OSError):  # noted by who looks for the weights
            return sources.digest(self._num_threads)
        if known is not None:
            return known
        may_keep = sources.are_old
        digest = sources.digest(self._num_threads)
        if may_keep and sources.are_unchanged:
            with contextlib.suppress(OSError):
                self._keep_known(path, glance + digest)
        return digest

    def _keep_known(self, path: Path, known: bytes) -> None:
        """Raises OSError."""
        kept = sorted(self.path.glob(f"*{KNOWN_SUFFIX}"), key=lambda each: each.lstat().st_mtime_ns)
        for each in kept[: 1 - MAX_KNOWN]:
            each.unlink(missing_ok=True)
        with os.fdopen(open_private(path), "wb") as file:
            file.write(known + hashlib.sha256(known).digest())

    def _map(self, key: bytes) -> MappedFile | None:
        path = self._file(key, SUFFIX)
        try:
            mapped = MappedFile.open(path, key, self._num_threads, self._checksum)
        except FileNotFoundError:
            return None
        except (DamagedFile, OSError) as exc:
            self._note(f"{path.name} is not taken: {exc}")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it is used: others go first
        return mapped

    def _build(self, key: bytes, num_bytes: int, build: Build) -> MappedFile | None:
        """Builds it with the lock of `key`. Raises NoRoom; OSError."""
        self._make_room(key, num_bytes)
        self._check_disk(num_bytes)
        path, made = self._file(key, SUFFIX), self._file(key, ".new")
        try:
            with os.fdopen(open_private(made), "wb") as file:
                writer = PackedWriter(file, key, self._max_bytes, self._checksum)
                num_written = writer.finish(build(writer))
            self._make_room(key, num_written)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        log.info("weights_packed", path=str(path), num_bytes=num_written)
        return self._map(key)

    def _make_room(self, key: bytes, num_bytes: int) -> None:
        """Raises NoRoom where it does not fit even alone."""
        if num_bytes > self._max_bytes:
            raise NoRoom(f"{num_bytes} bytes are more than packed_max_bytes={self._max_bytes}")
        self._remove_left_behind(key)
        kept = {}
        for path in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                kept[path] = path.stat()
        kept.pop(self._file(key, SUFFIX), None)
        total = num_bytes + sum(status.st_size for status in kept.values())
        for path in sorted(kept, key=lambda path: kept[path].st_mtime_ns):
            if total <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= kept[path].st_size
            log.info("packed_weights_removed", path=str(path), num_bytes=kept[path].st_size)

    def _remove_left_behind(self, key: bytes) -> None:
        """Removes what is left by workers that died while they built: nobody has their locks."""
        for path in self.path.glob("*.new"):
            if path == self._file(key, ".new"):
                continue
            with cache_lock(path.with_suffix(".lock"), 0.0) as is_ours:
                if is_ours:
                    path.unlink(missing_ok=True)

    def _check_disk(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.path).free
        if num_bytes + FREE_BYTES > free:
            raise NoRoom(f"{num_bytes} bytes do not fit into the {free} free ones of {self.path}")

    def _file(self, key: bytes, suffix: str) -> Path:
        return self.path / f"{key.hex()[:32]}{suffix}"

    def _note(self, failure: str) -> None:
        if failure not in self.failures:
            self.failures.append(failure)
            log.warning("packed_weights_unavailable", reason=failure)


def _read_known(path: Path, glance: bytes) -> bytes | None:
    """None where there is none, or it is not whole. Raises OSError."""
    try:
        known = path.read_bytes()
    except FileNotFoundError:
        return None
    digest = known[len(glance) :][:DIGEST_BYTES]
    is_whole = known == glance + digest + hashlib.sha256(glance + digest).digest()
    return digest if is_whole else None
