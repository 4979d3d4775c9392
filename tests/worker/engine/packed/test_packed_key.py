"""The name of packed weights: it changes with each byte of what they are made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.engine.packed import packed_key as module
from worker.engine.packed.packed_key import Sources, packed_key

BLOCK_BYTES = 1 << 12


def make_sources(path: Path, data: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(data)
    return path


def digest_of(path: Path) -> bytes:
    return Sources(path).digest(2)


def test_every_byte_counts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
    data = os.urandom(2 * BLOCK_BYTES + 10)
    one = make_sources(tmp_path / "one", data)
    other = make_sources(tmp_path / "other", data)
    os.utime(other / "model.safetensors", (1, 1))
    digest = digest_of(one)
    assert digest_of(other) == digest
    status = (other / "model.safetensors").stat()
    for at in (0, BLOCK_BYTES - 1, BLOCK_BYTES, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        (other / "model.safetensors").write_bytes(changed)
        os.utime(other / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert digest_of(other) != digest, "the same name, size and time"
    (one / "config.json").write_text('{"rope_theta": 1}')
    assert digest_of(one) != digest


def test_writing_meanwhile_is_seen(tmp_path: Path) -> None:
    path = make_sources(tmp_path / "one", b"weights")
    sources = Sources(path)
    sources.digest(1)
    assert sources.are_unchanged
    with (path / "model.safetensors").open("r+b") as file:
        file.write(b"W")
    os.utime(path / "model.safetensors", ns=(1, sources.files[1].marks[2]))
    assert not sources.are_unchanged, "the inode says when it was changed last"


def test_code_and_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    monkeypatch.setattr(module, "ENGINE_CODE", (tmp_path,))
    keys = {packed_key(b"sources", "avx2"), packed_key(b"sources", "avx512")}
    (tmp_path / "a.py").write_text("x = 2")
    keys.add(packed_key(b"sources", "avx2"))
    (tmp_path / "b.h").write_text("")
    keys.add(packed_key(b"sources", "avx2"))
    assert len(keys) == 4
    (tmp_path / "c.txt").write_text("")
    assert packed_key(b"sources", "avx2") in keys
