"""A file of packed weights: written once, mapped by many, believed only where its digests agree."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np

from worker.engine.packed.errors import DamagedFile, NoRoom

ALIGNMENT = 64  # of what is appended
BLOCK_BYTES = 4 << 20  # of the body, that have a checksum
DIGEST_BYTES = 32
CHECKSUM_BYTES = 16

Checksum = Callable[[memoryview], bytes]
"""Of a block of bytes. It sees a disk's errors, which mean no harm; whoever does may not write to
the file.
"""

_MAGIC = b"jetflock packed\n"
_VERSION = 2
_HEAD = struct.Struct("<16sIIQQ32s32s")
_HEAD_BYTES = 4096
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _Head(NamedTuple):
    """The first page: these, zeros, and a digest of both.

    Behind it come the body and the table: the checksums of the body's blocks, then what lies where.
    """

    magic: bytes
    version: int
    block_bytes: int
    body_bytes: int
    table_bytes: int
    key: bytes  # of what the body is made of
    table_digest: bytes

    def page(self) -> bytes:
        page = _HEAD.pack(*self).ljust(_HEAD_BYTES - DIGEST_BYTES, b"\0")
        return page + hashlib.sha256(page).digest()

    @classmethod
    def read(cls, page: bytes) -> Self:
        """Raises DamagedFile."""
        if len(page) < _HEAD_BYTES:
            raise DamagedFile("it is cut")
        head = cls(*_HEAD.unpack_from(page))
        if head.magic != _MAGIC:
            raise DamagedFile("it does not begin as packed weights do")
        if head.version != _VERSION:
            raise DamagedFile(f"it is of version {head.version}, not {_VERSION}")
        if head.page() != page:
            raise DamagedFile("its head has another digest than it says")
        return head

    @property
    def num_blocks(self) -> int:
        return -(-self.body_bytes // self.block_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole file."""
        return _HEAD_BYTES + self.body_bytes + self.table_bytes


class PackedWriter:
    """Writes a file from its beginning; without `finish` it is none that anybody reads.

    Every method may raise OSError; the disk may be full.
    """

    def __init__(self, file: BinaryIO, key: bytes, max_bytes: int, checksum: Checksum) -> None:
        self._file = file
        self._key = key
        self._max_bytes = max_bytes
        self._checksum = checksum
        self._checksums: list[bytes] = []
        self._block = memoryview(bytearray(BLOCK_BYTES))  # under way
        self._num_in_block = 0
        self._body_bytes = 0
        file.write(bytes(_HEAD_BYTES))
        self._append(memoryview(bytes(ALIGNMENT)))  # so that no offset is zero

    def append(self, data: memoryview) -> int:
        """Where in the body the bytes begin, never 0. Raises NoRoom beyond the bound."""
        at = self._body_bytes
        self._append(data)
        self._append(memoryview(bytes(-self._body_bytes % ALIGNMENT)))
        return at

    def finish(self, contents: bytes) -> int:
        """`contents` tells what lies where. Returns the bytes of the whole file."""
        self._end_block()
        table = b"".join(self._checksums) + contents
        self._file.write(table)
        head = _Head(
            _MAGIC,
            _VERSION,
            BLOCK_BYTES,
            self._body_bytes,
            len(table),
            self._key,
            hashlib.sha256(table).digest(),
        )
        self._file.seek(0)
        self._file.write(head.page())
        self._file.flush()
        return head.num_bytes

    def _append(self, data: memoryview) -> None:
        if _HEAD_BYTES + self._body_bytes + len(data) > self._max_bytes:
            raise NoRoom(f"it takes more than packed_max_bytes={self._max_bytes}")
        self._body_bytes += len(data)
        while data:
            start = self._num_in_block
            part = data[: BLOCK_BYTES - start]
            self._block[start : start + len(part)] = part
            self._num_in_block += len(part)
            if self._num_in_block == BLOCK_BYTES:
                self._end_block()
            data = data[len(part) :]

    def _end_block(self) -> None:
        """Without effect on one that is empty."""
        if self._num_in_block:
            block = self._block[: self._num_in_block]
            self._checksums.append(self._checksum(block))
            self._file.write(block)
            self._num_in_block = 0


class MappedFile:
    """A packed file of which every byte was looked at, in memory that all who map it share.

    Nobody changes a file under this name, they replace it: what is mapped stays as it was.
    """

    def __init__(self, body: np.ndarray[tuple[int], np.dtype[np.uint8]], contents: bytes) -> None:
        self._body = body  # keeps the map
        self.contents = contents
        self.address: int = body.ctypes.data
        self.num_bytes = len(body)

    @classmethod
    def open(cls, path: Path, key: bytes, num_threads: int, checksum: Checksum) -> Self:
        """Raises DamagedFile for what is not the whole file of `key`, as it was written; OSError,
        also where there is none.
        """
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return cls._of(file, key, num_threads, checksum)
        finally:
            os.close(file)

    @classmethod
    def _of(cls, file: int, key: bytes, num_threads: int, checksum: Checksum) -> Self:
        status = os.fstat(file)
        _check_owner(status)
        head = _Head.read(os.pread(file, _HEAD_BYTES, 0))
        if head.key != key:
            raise DamagedFile("it is of other weights")
        if head.num_bytes != status.st_size or head.block_bytes != BLOCK_BYTES:
            raise DamagedFile(f"it has {status.st_size} bytes, not {head.num_bytes}")
        mapped = mmap.mmap(file, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        whole = memoryview(mapped)
        body_end = _HEAD_BYTES + head.body_bytes
        table = bytes(whole[body_end:])
        if hashlib.sha256(table).digest() != head.table_digest:
            raise DamagedFile("its table has another digest than it says")
        checksums_end = head.num_blocks * CHECKSUM_BYTES
        _check_blocks(mapped, head, table[:checksums_end], num_threads, checksum)
        body = np.frombuffer(mapped, np.uint8, head.body_bytes, _HEAD_BYTES)
        return cls(body, table[checksums_end:])


def _check_owner(status: os.stat_result) -> None:
    """Raises DamagedFile for what others may have written."""
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFile("it is no file")
    if status.st_uid != os.geteuid() or status.st_mode & _OPEN_TO_OTHERS:
        raise DamagedFile("others may write to it")


def _check_blocks(
    mapped: mmap.mmap, head: _Head, checksums: bytes, num_threads: int, checksum: Checksum
) -> None:
    """Raises DamagedFile. It is also what brings the file into memory."""
    whole = memoryview(mapped)

    def is_whole(idx: int) -> bool:
        start = _HEAD_BYTES + idx * head.block_bytes
        end = min(start + head.block_bytes, _HEAD_BYTES + head.body_bytes)
        mapped.madvise(mmap.MADV_WILLNEED, start, end - start)
        return checksum(whole[start:end]) == checksums[idx * CHECKSUM_BYTES :][:CHECKSUM_BYTES]

    with ThreadPoolExecutor(num_threads) as threads:
        for idx, is_right in enumerate(threads.map(is_whole, range(head.num_blocks))):
            if not is_right:
                raise DamagedFile(f"block {idx} of {head.num_blocks} has another checksum")
