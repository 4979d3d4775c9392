"""Pages of keys and values in a folder: for this worker, those beside it, and the next one."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.engine.device.cache_folder import make_private, open_private
from worker.engine.device.cache_lock import cache_lock
from worker.engine.tiers.kv_tier import PageContent, TierCounts, averaged
from worker.engine.tiers.page_file import (
    PageHead,
    PageIdentity,
    RejectedPage,
    page_parts,
    read_page,
)
from worker.engine_link.engine_config import KV_DISK_FREE_BYTES
from worker.transfer.page_wire import page_name

STAGED_BYTES = 64 << 20  # of pages that wait to be written, and as many of those that were read
MIN_STAGED = 4  # pages, however large
KEPT_SHARE = 0.95  # of the bytes that may be used, when the oldest pages have made room
RESCAN_S = 10.0  # other workers write and remove pages as well
RETRY_S = 10.0  # after a write that failed
LOCK_TIMEOUT_S = 10.0
DEAD_S = 60.0  # a page that is being written for longer never will be

_SUFFIX, _NEW_SUFFIX = ".page", ".new"
_USED_BYTES = 8
_NAME_LEN = 16
_FULL = (errno.ENOSPC, errno.EDQUOT)

log = get_logger(__name__)


class _Order(NamedTuple):
    chain: bytes
    used_ns: int


class SharedRoom:
    """The bytes of a folder, counted in a file that all workers which share it lock: so none fills
    more than there may be. Who is killed leaves a page's bytes counted too many; the next count of
    what is really there, when all are used, has them back.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._path = folder / "used"
        self._max_bytes = max_bytes
        self.num_bytes = 0  # as it was counted last
        with self._locked():
            self._write(self._remove_oldest(max_bytes))
            self.name = self._read_name()

    def reserve(self, num_bytes: int) -> Path | None:
        """A file of so many bytes for a page, which counts for others from now on; room is made by
        removing those not used for longest. None: there is none. Raises OSError.
        """
        if num_bytes > self._max_bytes:
            return None
        with self._locked():
            used = self._read()
            if used + num_bytes > self._max_bytes:
                used = self._remove_oldest(int(self._max_bytes * KEPT_SHARE) - num_bytes)
                self._write(used)
            if used + num_bytes > self._max_bytes:
                return None
            self._write(used + num_bytes)
            made = self._folder / f"{uuid.uuid4().hex}{_NEW_SUFFIX}"
            with os.fdopen(open_private(made), "wb") as file:
                file.truncate(num_bytes)
        return made

    def give_back(self, num_bytes: int) -> None:
        with contextlib.suppress(OSError), self._locked():
            self._write(max(0, self._read() - num_bytes))

    def look(self) -> None:
        """Others fill it, too. Raises OSError."""
        self.num_bytes = self._read()

    def _remove_oldest(self, max_bytes: int) -> int:
        """Removes the oldest whole pages. Returns the bytes left, also those being written."""
        found, num_bytes, now = [], 0, time.time()
        for entry in os.scandir(self._folder):
            if not entry.name.endswith((_SUFFIX, _NEW_SUFFIX)):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX):
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
                elif now - status.st_ctime > DEAD_S:
                    os.unlink(entry.path)
                    continue
                num_bytes += status.st_size
        found.sort(reverse=True)
        while num_bytes > max(0, max_bytes) and found:
            _, size, path = found.pop()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            num_bytes -= size
        return num_bytes

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Raises OSError where no lock can be had."""
        with cache_lock(self._folder / "lock", LOCK_TIMEOUT_S) as is_ours:
            if not is_ours:
                raise TimeoutError(f"no lock can be had in {self._folder}")
            yield

    def _read_name(self) -> str:
        """What tells it from all other folders, by whatever path it is reached."""
        with open(open_private(self._folder / "name", flags=0), "r+", encoding="ascii") as file:
            name = file.read()
            if len(name) != _NAME_LEN:
                name = uuid.uuid4().hex[:_NAME_LEN]
                file.seek(0)
                file.write(name)
                file.truncate()
        return name

    def _read(self) -> int:
        """As many as there may be, where nobody has counted."""
        with contextlib.suppress(FileNotFoundError):
            data = self._path.read_bytes()
            if len(data) == _USED_BYTES:
                return int.from_bytes(data, "little")
        return self._max_bytes

    def _write(self, num_bytes: int) -> None:
        with open(open_private(self._path), "wb", buffering=0) as file:
            file.write(num_bytes.to_bytes(_USED_BYTES, "little"))
        self.num_bytes = num_bytes


class DiskTier:
    """A file a page, named by what it holds. It is there as a whole or not at all, never written to
    again, and believed by nobody who has not checked it.

    Two threads do what takes time: one reads, one writes and counts. Nothing is flushed: what a
    power cut damages is seen.
    """

    def __init__(
        self, folder: Path, max_bytes: int, identity: PageIdentity, num_page_bytes: int
    ) -> None:
        """Raises ConfigError."""
        self.counts = TierCounts()
        self._folder = folder
        self._identity = identity
        self._mark = identity.mark
        self._num_page_bytes = num_page_bytes
        self.max_ordered = max(MIN_STAGED, STAGED_BYTES // num_page_bytes)
        self.read_s: float | None = None
        self.write_s: float | None = None
        try:
            make_private(folder)
            disk_bytes = shutil.disk_usage(folder).total
            if disk_bytes < KV_DISK_FREE_BYTES + num_page_bytes:
                raise ConfigError(
                    f"kv_disk_dir={folder} is on a disk of {disk_bytes} bytes, of which "
                    f"{KV_DISK_FREE_BYTES} are left to others: no page would be written"
                )
            self._room = SharedRoom(folder, max_bytes)
            self.place = f"{self._room.name}-{self._mark}"
            self._index = self._scan()
        except OSError as exc:
            raise ConfigError(f"kv_disk_dir={folder} is not possible: {exc}") from exc
        self._staged: set[bytes] = set()  # chains that wait to be written
        self._is_clearing = False
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._arrived: deque[PageContent | None] = deque()
        self._scanned_at = time.monotonic()
        self._paused_until = 0.0  # of the monotonic clock: a write has failed
        self._threads = [
            threading.Thread(target=self._read_all, name="kv-read", daemon=True),
            threading.Thread(target=self._write_all, name="kv-write", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_pages(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        return self._room.num_bytes

    def has(self, chain: bytes) -> bool:
        return chain in self._index and not self._is_clearing

    def find(self, chain: bytes) -> bool:
        if not self.has(chain) and self._path(chain).exists():
            self._index.add(chain)
        return self.has(chain)

    def is_known(self, chain: bytes) -> bool:
        return chain in self._staged or self.has(chain)

    @property
    def has_room(self) -> bool:
        return self._jobs.qsize() < self.max_ordered

    def put(self, chain: bytes, content: PageContent, used_ns: int) -> None:
        self._staged.add(chain)
        self._jobs.put(lambda: self._write(chain, content, used_ns))

    def order(self, chain: bytes, used_ns: int) -> None:
        self._orders.put(_Order(chain, used_ns))

    def take_arrived(self) -> Sequence[PageContent | None]:
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def clear(self) -> None:
        self._is_clearing = True
        self._jobs.put(self._remove_all)

    def close(self) -> None:
        """When all that waits is written."""
        self._jobs.put(None)
        self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def _read_all(self) -> None:
        while (order := self._orders.get()) is not None:
            begin = time.perf_counter()
            content = self._read(order)
            if content is not None:
                self.counts.num_read += 1
                self.read_s = averaged(self.read_s, time.perf_counter() - begin)
            self._arrived.append(content)

    def _read(self, order: _Order) -> PageContent | None:
        path = self._path(order.chain)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags), "rb", buffering=0) as file:
                head = PageHead(self._identity, order.chain)
                content = read_page(file, head, self._num_page_bytes)
                os.utime(file.fileno(), ns=(order.used_ns, order.used_ns))
        except FileNotFoundError:  # another worker has made room
            self._index.discard(order.chain)
            return None
        except (RejectedPage, OSError) as exc:
            reason = exc.reason if isinstance(exc, RejectedPage) else "unreadable"
            self.counts.rejected[reason] += 1
            log.warning("kv_page_rejected", path=str(path), reason=reason, error=str(exc))
            self._index.discard(order.chain)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return content

    def _write_all(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=RESCAN_S)
            except queue.Empty:
                job = self._rescan
            if job is None:
                return
            job()
            if time.monotonic() - self._scanned_at > RESCAN_S:
                self._rescan()

    def _write(self, chain: bytes, content: PageContent, used_ns: int) -> None:
        begin = time.perf_counter()
        try:
            reason = self._write_file(chain, content, used_ns)
        except OSError as exc:
            self._paused_until = time.monotonic() + RETRY_S
            reason = "disk_full" if exc.errno in _FULL else "unwritable"
            log.warning("kv_page_not_written", folder=str(self._folder), error=str(exc))
        self._staged.discard(chain)
        if reason:
            self.counts.lost[reason] += 1
        else:
            self.write_s = averaged(self.write_s, time.perf_counter() - begin)
            self.counts.num_written += 1

    def _write_file(self, chain: bytes, content: PageContent, used_ns: int) -> str:
        """Why it is not written; "": it is. Raises OSError."""
        if time.monotonic() < self._paused_until:
            return "unwritable"
        parts = page_parts(PageHead(self._identity, chain), content)
        num_bytes = sum(part.nbytes for part in parts)
        free_bytes = shutil.disk_usage(self._folder).free
        if free_bytes < num_bytes + KV_DISK_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, f"of {free_bytes} free bytes {KV_DISK_FREE_BYTES} are others'"
            )
        made = self._room.reserve(num_bytes)
        if made is None:
            return "no_room"
        try:
            with open(open_private(made, flags=0), "r+b") as file:
                file.writelines(parts)
                file.flush()
                os.utime(file.fileno(), ns=(used_ns, used_ns))
            made.rename(self._path(chain))
        except OSError:
            self._room.give_back(num_bytes)
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
            raise
        self._index.add(chain)
        return ""

    def _remove_all(self) -> None:
        with contextlib.suppress(OSError):
            for chain in self._scan():
                self._path(chain).unlink(missing_ok=True)
        self._index = set()
        self._is_clearing = False

    def _rescan(self) -> None:
        """Other workers write and remove pages, too."""
        self._scanned_at = time.monotonic()
        with contextlib.suppress(OSError):
            self._index = self._scan()
            self._room.look()

    def _scan(self) -> set[bytes]:
        """Raises OSError."""
        head = f"{self._mark}-"
        found = set()
        for name in os.listdir(self._folder):
            if name.startswith(head) and name.endswith(_SUFFIX):
                with contextlib.suppress(ValueError):
                    found.add(bytes.fromhex(name[len(head) : -len(_SUFFIX)]))
        return found

    def _path(self, chain: bytes) -> Path:
        return self._folder / page_name(self._mark, chain)
