"""The name of packed weights: a digest of all that they are made of."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from shared.checkpoint.model_files import weight_files
from worker.engine.device.code_digest import ENGINE_CODE, code_digest

BLOCK_BYTES = 4 << 20
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096  # of a file
SETTLED_NS = 2_000_000_000  # no file system's clock is coarser


class SourceFile(NamedTuple):
    """A file of a checkpoint, and what would be other if somebody had written to it."""

    path: Path
    num_bytes: int
    marks: tuple[int, ...]  # device, inode, and when it was written to and changed, in ns

    @property
    def sample_starts(self) -> range:
        last = max(0, self.num_bytes - SAMPLE_BYTES)
        return range(0, last + 1, max(1, -(-last // (NUM_SAMPLES - 1))))


class Sources:
    """The files of a checkpoint that its weights depend on."""

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self.files = tuple(_files(model_path))

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def digest(self, num_threads: int) -> bytes:
        """A digest of every byte, whatever the files are called where, and how old they are."""
        whole = hashlib.sha256()
        for file, digests in self._block_digests(num_threads):
            whole.update(f"{file.path.name}:{file.num_bytes}\n".encode())
            whole.update(b"".join(digests))
        return whole.digest()

    def glance(self) -> bytes:
        """A digest of what tells files apart without reading them: names, sizes, places, times, and
        samples of their bytes, for an image of a disk may give two models all others alike.
        """
        glance = hashlib.sha256()
        for file in self.files:
            glance.update(f"{file.path.name}:{file.num_bytes}:{file.marks}\n".encode())
            with file.path.open("rb", buffering=0) as stream:
                for start in file.sample_starts:
                    glance.update(os.pread(stream.fileno(), SAMPLE_BYTES, start))
        return glance.digest()

    @property
    def are_old(self) -> bool:
        """Whether all were written to so long ago that to write again would change their times."""
        newest = max(max(file.marks[-2:]) for file in self.files)
        return time.time_ns() - newest > SETTLED_NS

    @property
    def are_unchanged(self) -> bool:
        """Whether nobody has written to one since, nor put another in its place."""
        return self.files == tuple(_files(self._model_path))

    def _block_digests(self, num_threads: int) -> Iterator[tuple[SourceFile, Sequence[bytes]]]:
        buffers = threading.local()

        def digest(file: int, start: int) -> bytes:
            if not hasattr(buffers, "bytes"):
                buffers.bytes = bytearray(BLOCK_BYTES)
            num_bytes = os.preadv(file, [buffers.bytes], start)
            return hashlib.sha256(memoryview(buffers.bytes)[:num_bytes]).digest()

        with ThreadPoolExecutor(num_threads) as threads:
            for file in self.files:
                with file.path.open("rb", buffering=0) as stream:
                    starts = range(0, file.num_bytes, BLOCK_BYTES)
                    numbers = [stream.fileno()] * len(starts)
                    digests = list(threads.map(digest, numbers, starts))
                yield file, digests


def packed_key(sources: bytes, *settings: str) -> bytes:
    """The key of weights made of `sources` by this code, as `settings` want them.

    All of the engine's code counts, and all that it shares with others, as torch's version does:
    a change of what reads a format must not be answered with what an older version read.
    """
    digest = hashlib.sha256(sources)
    digest.update("\n".join((torch.__version__, *settings)).encode())
    digest.update(code_digest(ENGINE_CODE))
    return digest.digest()


def _files(model_path: Path) -> Iterator[SourceFile]:
    for path in (*sorted(model_path.glob("*.json")), *weight_files(model_path)):
        status = path.stat()
        marks = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        yield SourceFile(path, status.st_size, marks)
