"""The folder of packed files: built once, kept within its bound, and never in the way."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import ConfigError
from worker.engine.packed import packed_folder
from worker.engine.packed.packed_file import MappedFile, PackedWriter
from worker.engine.packed.packed_folder import PackedFolder

SIZE = 10_000


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "big") if number > 255 else bytes([number]) * 32


class Builds:
    """Counts builds; each writes SIZE bytes."""

    def __init__(self) -> None:
        self.num = 0
        self.failure: Exception | None = None

    def __call__(self, writer: PackedWriter) -> bytes:
        self.num += 1
        writer.append(memoryview(bytes(SIZE)))
        if self.failure is not None:
            raise self.failure
        return b"contents"


@pytest.fixture
def builds() -> Builds:
    return Builds()


def get(folder: PackedFolder, builds: Builds, number: int = 1) -> MappedFile | None:
    return folder.get(key_of(number), SIZE, builds)


def make_folder(path: Path, max_bytes: int = 1 << 20) -> PackedFolder:
    return PackedFolder(path / "packed", max_bytes, num_threads=1)


def files(path: Path) -> set[str]:
    return {each.name for each in (path / "packed").iterdir() if each.suffix != ".lock"}


def test_built_once_and_for_this_user_alone(tmp_path: Path, builds: Builds) -> None:
    for _ in range(2):
        mapped = get(make_folder(tmp_path), builds)
        assert mapped is not None
        assert mapped.contents == b"contents"
    assert builds.num == 1
    assert (tmp_path / "packed").stat().st_mode & 0o777 == 0o700
    (name,) = files(tmp_path)
    assert (tmp_path / "packed" / name).stat().st_mode & 0o777 == 0o600


def test_workers_that_start_together_build_once(tmp_path: Path, builds: Builds) -> None:
    together = threading.Barrier(4)

    def start(_: int) -> MappedFile | None:
        together.wait(10.0)
        return get(make_folder(tmp_path), builds)

    with ThreadPoolExecutor(4) as workers:
        assert None not in list(workers.map(start, range(4)))
    assert builds.num == 1


def test_damage_is_told_once_and_mended(tmp_path: Path, builds: Builds) -> None:
    assert get(make_folder(tmp_path), builds) is not None
    (name,) = files(tmp_path)
    file = tmp_path / "packed" / name
    data = bytearray(file.read_bytes())
    data[9000] ^= 1
    file.write_bytes(data)
    folder = make_folder(tmp_path)
    assert get(folder, builds) is not None
    assert builds.num == 2
    assert folder.failures == [f"{name} is not taken: block 0 of 1 has another digest"]
    assert get(make_folder(tmp_path), builds) is not None
    assert builds.num == 2


def test_the_one_not_used_for_longest_goes(tmp_path: Path, builds: Builds) -> None:
    def make() -> PackedFolder:
        return make_folder(tmp_path, 50_000)  # room for three

    for number in (1, 2, 3):
        assert get(make(), builds, number) is not None
        os.utime(tmp_path / "packed" / f"{key_of(number).hex()[:32]}.packed", (number, number))
    assert get(make(), builds, 1) is not None  # used: now 2 is the oldest
    mapped = get(make(), builds, 4)
    assert mapped is not None
    assert files(tmp_path) == {f"{key_of(number).hex()[:32]}.packed" for number in (1, 3, 4)}
    assert sum((tmp_path / "packed" / name).stat().st_size for name in files(tmp_path)) <= 50_000
    assert builds.num == 4


def test_what_would_fit_nowhere_is_not_begun(tmp_path: Path, builds: Builds) -> None:
    folder = make_folder(tmp_path, SIZE - 1)
    assert get(folder, builds) is None
    assert builds.num == 0
    assert folder.failures == [f"{SIZE} bytes are more than packed_max_bytes={SIZE - 1}"]
    folder = make_folder(tmp_path, SIZE + 100)  # more than was thought
    assert get(folder, builds) is None
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), ConfigError("a bad weight")]
)
def test_a_build_that_fails_leaves_nothing(
    tmp_path: Path, builds: Builds, failure: Exception
) -> None:
    """What is wrong with the checkpoint is told as ever, what is wrong with the disk in the log."""
    builds.failure = failure
    folder = make_folder(tmp_path)
    if isinstance(failure, ConfigError):
        with pytest.raises(ConfigError, match="a bad weight"):
            get(folder, builds)
    else:
        assert get(folder, builds) is None
        assert folder.failures == ["[Errno 28] No space left on device"]
    assert files(tmp_path) == set()


def test_a_full_disk_is_seen_before(
    tmp_path: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_folder, "FREE_BYTES", 1 << 60)
    folder = make_folder(tmp_path)
    assert get(folder, builds) is None
    assert builds.num == 0
    assert "do not fit into" in folder.failures[0]


def test_what_a_dead_worker_left_goes(tmp_path: Path, builds: Builds) -> None:
    assert get(make_folder(tmp_path), builds) is not None
    kept = files(tmp_path)
    left = tmp_path / "packed" / f"{key_of(2).hex()[:32]}.new"
    left.write_bytes(b"half")
    mine = tmp_path / "packed" / f"{key_of(3).hex()[:32]}.new"
    mine.write_bytes(b"half of what is built now")
    assert get(make_folder(tmp_path), builds, 3) is not None
    assert files(tmp_path) == kept | {mine.with_suffix(".packed").name}


def test_a_folder_open_to_others_is_not_used(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "packed").mkdir(mode=0o755)
    folder = make_folder(tmp_path)
    assert get(folder, builds) is None
    assert "is not this user's alone" in folder.failures[0]
    (tmp_path / "packed").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "packed").symlink_to(tmp_path / "elsewhere")
    assert get(folder, builds) is None
    assert "is no folder" in folder.failures[1]
    assert builds.num == 0


def test_without_a_place_for_a_folder(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "file").touch()
    folder = make_folder(tmp_path / "file")
    assert get(folder, builds) is None
    assert len(folder.failures) == 1


def test_without_a_lock_nothing_is_built(
    tmp_path: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that cannot be written to; what is there is taken."""
    assert get(make_folder(tmp_path), builds, 1) is not None
    for lock in (tmp_path / "packed").glob("*.lock"):
        lock.unlink()
    monkeypatch.setattr(packed_folder, "LOCK_TIMEOUT_S", 0.0)
    (tmp_path / "packed" / f"{key_of(2).hex()[:32]}.lock").mkdir()
    assert get(make_folder(tmp_path), builds, 1) is not None
    folder = make_folder(tmp_path)
    assert get(folder, builds, 2) is None
    assert "no lock" in folder.failures[0]
    assert builds.num == 1
