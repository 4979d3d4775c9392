"""The packed file: what was written comes back, and nothing else does."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.engine.packed import packed_file
from worker.engine.packed.errors import DamagedFile, NoRoom
from worker.engine.packed.packed_file import (
    _HEAD_BYTES,
    CHECKSUM_BYTES,
    MappedFile,
    PackedWriter,
    _Head,
)

KEY = bytes(range(32))
BLOCK_BYTES = 1 << 13
CONTENTS = b"what lies where"
# Of the head: magic, version, bytes of a block, of the body, of the table; key, digest of the
# table; zeros; its own digest.
HEAD_FIELDS = (0, 16, 20, 24, 32, 40, 72, 2000, _HEAD_BYTES - 32, _HEAD_BYTES - 1)


def checksum(data: memoryview) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def write(path: Path, parts: list[bytes], *, max_bytes: int = 1 << 30) -> list[int]:
    """Where they begin."""
    with path.open("wb") as file:
        writer = PackedWriter(file, KEY, max_bytes, checksum)
        places = [writer.append(memoryview(part)) for part in parts]
        assert writer.finish(CONTENTS) == path.stat().st_size
    path.chmod(0o600)
    return places


def open_file(path: Path) -> MappedFile:
    return MappedFile.open(path, KEY, 2, checksum)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture
def parts() -> list[bytes]:
    """Of a body of two blocks and a bit."""
    return [os.urandom(size) for size in (1, 63, 64, 65, BLOCK_BYTES, BLOCK_BYTES, 5)]


def test_what_was_written_comes_back(tmp_path: Path, parts: list[bytes]) -> None:
    places = write(tmp_path / "a", parts)
    mapped = open_file(tmp_path / "a")
    assert mapped.contents == CONTENTS
    assert 0 not in places
    assert all((mapped.address + place) % 64 == 0 for place in places)
    for place, part in zip(places, parts, strict=True):
        assert ctypes.string_at(mapped.address + place, len(part)) == part


def _flip(at: int, bit: int = 0) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 1 << bit

    return change


def _cut(data: bytearray) -> None:
    del data[-1:]


def _cut_in_the_head(data: bytearray) -> None:
    del data[100:]


def _empty(data: bytearray) -> None:
    data.clear()


def _longer(data: bytearray) -> None:
    data.append(0)


def _zeros_at_the_end(data: bytearray) -> None:
    """As after a power cut: the length is there, what was written is not."""
    data[-4096:] = bytes(4096)


CHANGES = {
    **{f"head at {at}": _flip(at, at % 8) for at in HEAD_FIELDS},
    "first byte of the body": _flip(_HEAD_BYTES),
    "last byte of the body": _flip(_HEAD_BYTES + 2 * BLOCK_BYTES + 383),
    "in the second block": _flip(_HEAD_BYTES + BLOCK_BYTES + 77, 7),
    "first byte of the table": _flip(-len(CONTENTS) - 3 * CHECKSUM_BYTES),
    "last byte of the table": _flip(-1),
    "cut": _cut,
    "cut in the head": _cut_in_the_head,
    "empty": _empty,
    "longer": _longer,
    "zeros at the end": _zeros_at_the_end,
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_damage_is_believed(tmp_path: Path, parts: list[bytes], change: str) -> None:
    path = tmp_path / "a"
    write(path, parts)
    data = bytearray(path.read_bytes())
    CHANGES[change](data)
    path.write_bytes(data)
    with pytest.raises(DamagedFile):
        open_file(path)


RESIGNED: dict[str, tuple[str, Callable[[_Head], _Head]]] = {
    "version": ("of version 1, not", lambda head: head._replace(version=1)),
    "bytes of a block": ("it has", lambda head: head._replace(block_bytes=0)),
    "longer body": ("it has", lambda head: head._replace(body_bytes=1 << 62)),
    "shorter table": ("it has", lambda head: head._replace(table_bytes=head.table_bytes - 1)),
    "a table of the body": (
        "its table",
        lambda head: head._replace(
            body_bytes=head.body_bytes - 64, table_bytes=head.table_bytes + 64
        ),
    ),
    "key": ("of other weights", lambda head: head._replace(key=bytes(32))),
    "digest": ("its table", lambda head: head._replace(table_digest=bytes(32))),
}


@pytest.mark.parametrize("change", RESIGNED)
def test_a_head_that_agrees_with_itself_alone(
    tmp_path: Path, parts: list[bytes], change: str
) -> None:
    """As another version, or another model's file, has it."""
    path = tmp_path / "a"
    write(path, parts)
    data = path.read_bytes()
    told, changed = RESIGNED[change]
    path.write_bytes(changed(_Head.read(data[:_HEAD_BYTES])).page() + data[_HEAD_BYTES:])
    with pytest.raises(DamagedFile, match=told):
        open_file(path)


def test_other_weights_and_other_writers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, [b"x"])
    with pytest.raises(DamagedFile, match="of other weights"):
        MappedFile.open(path, bytes(32), 1, checksum)
    path.chmod(0o620)
    with pytest.raises(DamagedFile, match="others may write"):
        open_file(path)
    path.chmod(0o600)
    (tmp_path / "b").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        open_file(tmp_path / "b")


def test_not_finished_is_no_file(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        PackedWriter(file, KEY, 1 << 20, checksum).append(memoryview(bytes(10000)))
    (tmp_path / "a").chmod(0o600)
    with pytest.raises(DamagedFile, match="does not begin"):
        open_file(tmp_path / "a")


def test_no_more_is_written_than_may_be(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="packed_max_bytes=10000"):
        write(tmp_path / "a", [bytes(1000)] * 10, max_bytes=10000)
    assert (tmp_path / "a").stat().st_size <= 10000
