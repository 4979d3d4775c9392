"""The folder of packed files: built once, kept within its bound, and never in the way."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tests.worker.engine.packed.test_packed_file import checksum
from worker.engine.packed import packed_folder, packed_key
from worker.engine.packed.packed_file import MappedFile, PackedWriter
from worker.engine.packed.packed_folder import PackedFolder
from worker.engine.packed.packed_key import Sources

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
    return PackedFolder(path / "packed", max_bytes, 1, checksum)


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
    assert folder.failures == [f"{name} is not taken: block 0 of 1 has another checksum"]
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


class ReadSources(Sources):
    """Counts how often all bytes are read. Written to long ago, unless told otherwise."""

    are_old = True
    num_reads = 0

    def digest(self, num_threads: int) -> bytes:
        self.num_reads += 1
        return super().digest(num_threads)


def test_a_checkpoint_is_read_once_until_somebody_writes_to_it(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", make_folder(tmp_path)
    model.mkdir()
    file = model / "model.safetensors"
    file.write_bytes(bytes(100_000))
    first, second = ReadSources(model), ReadSources(model)
    digest = folder.digest_of(first)
    assert folder.digest_of(second) == digest == Sources(model).digest(1)
    assert (first.num_reads, second.num_reads) == (1, 0)
    (name,) = files(tmp_path)
    (tmp_path / "packed" / name).write_bytes(bytes(96))
    assert folder.digest_of(second) == digest
    assert second.num_reads == 1, "what was known is no more"
    with file.open("r+b") as opened:
        opened.write(b"x")
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, first.files[0].marks[2]))
    changed = ReadSources(model)
    assert folder.digest_of(changed) != digest
    assert changed.num_reads == 1


def test_what_was_written_just_now_may_change_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    sources, folder = Sources(tmp_path), make_folder(tmp_path)
    assert not sources.are_old
    assert folder.digest_of(sources) == sources.digest(1)
    assert files(tmp_path) == set()
    monkeypatch.setattr(packed_key, "SETTLED_NS", -(10**12))
    folder.digest_of(sources)
    assert len(files(tmp_path)) == 1


def test_images_of_disks_are_told_apart_by_samples(tmp_path: Path) -> None:
    """Which have the same places and times where they are made to be reproduced."""
    file, glances = tmp_path / "model.safetensors", set()
    for byte in (0, 1):
        file.write_bytes(bytes([byte]) * 1_000_000)
        sources = Sources(tmp_path)
        sources.files = tuple(each._replace(marks=(1, 2, 0, 0)) for each in sources.files)
        glances.add(sources.glance())
    assert len(glances) == 2


def test_no_more_is_known_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_folder, "MAX_KNOWN", 2)
    folder = make_folder(tmp_path)
    for number in range(4):
        (tmp_path / "model.safetensors").write_bytes(bytes([number]))
        folder.digest_of(ReadSources(tmp_path))
    assert len(files(tmp_path)) == 2
