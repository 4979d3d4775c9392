"""Pages on disk: believed only as they were written, within their bytes, whoever dies."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from shared.errors import ConfigError
from tests.eventually import Looks
from worker.engine.tiers import disk_tier
from worker.engine.tiers.disk_tier import DiskTier, SharedRoom
from worker.engine.tiers.kv_tier import PageContent
from worker.engine.tiers.page_file import PageHead, PageIdentity, page_parts

IDENTITY = PageIdentity(
    revision="7d1c",
    code=b"build",
    kernel_set="avx2",
    dtype="bfloat16",
    groups=((2, 4, 64, 2),),
    page_size=16,
)
NUM_BYTES = 5000
ROOT = Path(__file__).parents[4]
FILE_BYTES = sum(
    part.nbytes for part in page_parts(PageHead(IDENTITY, bytes(32)), np.zeros(NUM_BYTES, np.uint8))
)


def chain_of(number: int) -> bytes:
    return bytes([number]) * 32


def content_of(number: int) -> PageContent:
    return np.full(NUM_BYTES, number, np.uint8)


@contextmanager
def opened(
    path: Path, max_bytes: int = 1 << 20, identity: PageIdentity = IDENTITY
) -> Iterator[DiskTier]:
    tier = DiskTier(path / "kv", max_bytes, identity, NUM_BYTES)
    try:
        yield tier
    finally:
        tier.close()


def write(path: Path, *numbers: int, max_bytes: int = 1 << 20, **others: Any) -> DiskTier:
    """Pages whose age is their number."""
    with opened(path, max_bytes, **others) as tier:
        for number in numbers:
            tier.put(chain_of(number), content_of(number), number)
    return tier


def read(tier: DiskTier, *numbers: int) -> list[PageContent | None]:
    for number in numbers:
        tier.order(chain_of(number), time.time_ns())
    arrived: list[PageContent | None] = []
    while len(arrived) < len(numbers):
        arrived += tier.take_arrived()
    return arrived


def page_paths(path: Path) -> list[Path]:
    return sorted((path / "kv").glob("*.page"))


def test_a_page_is_there_for_the_next_worker_and_for_this_user_alone(tmp_path: Path) -> None:
    tier = write(tmp_path, 1, 2)
    assert (tier.counts.num_written, tier.num_bytes) == (2, 2 * FILE_BYTES)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in page_paths(tmp_path)} == {0o600}
    with opened(tmp_path) as tier:
        assert (tier.num_pages, tier.num_bytes) == (2, 2 * FILE_BYTES)
        assert tier.has(chain_of(1))
        assert not tier.has(chain_of(3))
        pages = read(tier, 2, 3, 1)
        assert pages[1] is None
        assert np.array_equal(pages[0], content_of(2))  # type: ignore[arg-type]
        assert np.array_equal(pages[2], content_of(1))  # type: ignore[arg-type]
        assert not tier.counts.rejected


OTHERS = {
    "revision": "7d1d",
    "code": b"older",
    "kernel_set": "avx512",
    "dtype": "int8",
    "groups": ((2, 4, 64, 1),),
    "page_size": 32,
    "rank": 1,
    "num_ranks": 2,
    "layout": 0,
}


@pytest.mark.parametrize("field", PageIdentity.__struct_fields__)
def test_a_whole_page_of_another_engine_is_not_taken(tmp_path: Path, field: str) -> None:
    """Neither found under its own name, nor believed under ours."""
    other = msgspec.structs.replace(IDENTITY, **{field: OTHERS[field]})
    write(tmp_path, 1, identity=other)
    with opened(tmp_path) as tier:
        assert tier.num_pages == 0
    path = page_paths(tmp_path)[0]
    path.rename(path.with_name(path.name.replace(other.mark, IDENTITY.mark)))
    with opened(tmp_path) as tier:
        assert tier.has(chain_of(1))
        assert read(tier, 1) == [None]
        assert tier.counts.rejected == {"foreign": 1}
        assert not tier.has(chain_of(1))
    assert not page_paths(tmp_path)


def test_a_page_of_another_text_or_namespace_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = page_paths(tmp_path)[0]
    path.rename(path.with_name(path.name.replace(chain_of(1).hex(), chain_of(2).hex())))
    with opened(tmp_path) as tier:
        assert read(tier, 2) == [None]
        assert tier.counts.rejected == {"other_prefix": 1}


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    """In head, content and checksum."""
    write(tmp_path, 1)
    path = page_paths(tmp_path)[0]
    data = path.read_bytes()
    places = [*range(0, FILE_BYTES - NUM_BYTES - 32, 3), FILE_BYTES - NUM_BYTES, FILE_BYTES - 1]
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with opened(tmp_path) as tier:
            assert read(tier, 1) == [None]
            assert tier.counts.rejected == {"damaged": 1}


@pytest.mark.parametrize("num_bytes", [0, 3, 31, 200, FILE_BYTES - 1, FILE_BYTES + 1])
def test_no_page_of_another_length_is_believed(tmp_path: Path, num_bytes: int) -> None:
    write(tmp_path, 1)
    path = page_paths(tmp_path)[0]
    path.write_bytes((path.read_bytes() + b"x")[:num_bytes])
    with opened(tmp_path) as tier:
        assert read(tier, 1) == [None]
        assert tier.counts.rejected.total() == 1
        assert not page_paths(tmp_path)


def test_the_pages_not_used_for_longest_go(tmp_path: Path) -> None:
    max_bytes = 4 * FILE_BYTES
    write(tmp_path, 1, 2, 3, 4, max_bytes=max_bytes)
    with opened(tmp_path, max_bytes) as tier:
        read(tier, 1)
        tier.put(chain_of(5), content_of(5), time.time_ns())
    with opened(tmp_path, max_bytes) as tier:
        assert not tier.has(chain_of(2))
        assert tier.has(chain_of(1))
        assert tier.has(chain_of(5))
        assert tier.num_bytes <= max_bytes
    with opened(tmp_path, FILE_BYTES - 1) as tier:
        tier.put(chain_of(6), content_of(6), 6)
    assert tier.counts.lost == {"no_room": 1}
    assert not page_paths(tmp_path), "it may have less now"


def test_a_page_counts_for_others_before_it_is_written(tmp_path: Path) -> None:
    one, other = SharedRoom(tmp_path, 100), SharedRoom(tmp_path, 100)
    assert one.reserve(60) is not None
    assert other.reserve(60) is None, "a count of what is there finds it"
    assert other.reserve(40) is not None
    assert one.reserve(1) is None


def test_workers_share_a_folder_and_its_bytes(tmp_path: Path) -> None:
    max_bytes = 4 * FILE_BYTES
    with opened(tmp_path, max_bytes) as tier, opened(tmp_path, max_bytes) as other:
        for number in range(1, 21):
            (tier, other)[number % 2].put(chain_of(number), content_of(number), number)
    assert tier.counts.num_written + other.counts.num_written == 20
    assert sum(path.stat().st_size for path in page_paths(tmp_path)) <= max_bytes
    with opened(tmp_path, max_bytes) as tier:
        assert tier.num_pages > 1


def test_a_page_that_another_worker_has_removed_is_a_miss(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with opened(tmp_path) as tier:
        page_paths(tmp_path)[0].unlink()
        assert tier.has(chain_of(1))
        assert read(tier, 1) == [None]
        assert not tier.has(chain_of(1))
        assert not tier.counts.rejected


def write_for_ever(path: Path) -> None:
    with opened(path, 8 * FILE_BYTES) as tier:
        number = 0
        while True:
            number = (number + 1) % 200
            if tier.has_room:
                tier.put(chain_of(number), content_of(number), time.time_ns())


def test_what_a_killed_worker_left_is_reclaimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from {__name__} import Path, write_for_ever; write_for_ever(Path({str(tmp_path)!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    for _ in Looks(60):
        assert process.poll() is None
        if len(page_paths(tmp_path)) >= 4:
            break
    process.kill()
    process.wait()
    begun = tmp_path / "kv" / "half.new"  # one more that it had begun
    begun.write_bytes(bytes(FILE_BYTES // 2))
    monkeypatch.setattr(disk_tier, "DEAD_S", -1.0)
    with opened(tmp_path, 8 * FILE_BYTES) as tier:
        assert not begun.exists()
        numbers = [number for number in range(256) if tier.has(chain_of(number))]
        assert 0 < tier.num_bytes == len(numbers) * FILE_BYTES <= 8 * FILE_BYTES
        for number, page in zip(numbers, read(tier, *numbers), strict=True):
            assert np.array_equal(page, content_of(number))  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_leaves_nothing_and_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(failure, os.strerror(failure))

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", fail)
        tier = write(tmp_path, 1, 2)
    assert tier.counts.lost["unwritable" if failure == errno.EIO else "disk_full"] > 0
    assert tier.counts.lost.total() == 2, "the second is not tried"
    assert (tier.num_bytes, tier.num_pages) == (0, 0)
    assert {each.name for each in (tmp_path / "kv").iterdir()} == {"used", "lock", "name"}


def test_the_disk_is_not_filled_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk_tier, "KV_DISK_FREE_BYTES", (disk.free + disk.total) // 2)
    with capture_logs() as logs:
        tier = write(tmp_path, 1)
    assert tier.counts.lost == {"disk_full": 1}
    assert [each["event"] for each in logs] == ["kv_page_not_written"]
    monkeypatch.setattr(disk_tier, "KV_DISK_FREE_BYTES", disk.total)
    with pytest.raises(ConfigError, match=f"is on a disk of {disk.total} bytes, of which"):
        write(tmp_path, 1)


def test_a_flush_removes_what_waits_to_be_written_too(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with opened(tmp_path) as tier:
        tier.put(chain_of(2), content_of(2), 2)
        tier.clear()
        assert not tier.has(chain_of(1))
    assert not page_paths(tmp_path)


@pytest.mark.parametrize("mode", [0o755, 0o720])
def test_a_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(mode)
    with pytest.raises(ConfigError, match=r"kv_disk_dir=.*/kv .* not this user's alone"):
        write(tmp_path, 1)
