"""The folder of a process that was killed goes at the next start, that of a living one never."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from worker.weights.lora_folder import locked_folder, remove_dead_folders

PREFIX = "jetflock-test-"
HOLD = f"""
import sys, tempfile
from worker.weights.lora_folder import locked_folder
tempfile.tempdir = sys.argv[1]
with locked_folder({PREFIX!r}) as folder:
    (folder / "weights").write_bytes(b"1")
    print(folder, flush=True)
    sys.stdin.read()
"""
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.e2e
def test_a_folder_goes_with_the_process_that_was_killed_and_not_before(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        remove_dead_folders(PREFIX)
        assert (folder / "weights").read_bytes() == b"1", "its process lives"
        process.kill()
        process.wait()
    assert (folder / "weights").exists()
    remove_dead_folders(PREFIX)
    assert list(temporary.iterdir()) == []


def test_a_folder_goes_when_it_is_left(temporary: Path) -> None:
    with locked_folder(PREFIX) as folder:
        (folder / "revision").mkdir()
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []


def test_whatever_else_lies_there_is_left(temporary: Path) -> None:
    unlocked, other = temporary / f"{PREFIX}unlocked", temporary / "other"
    for folder in (unlocked, other):
        folder.mkdir()
    (other / "lock").touch()
    link = temporary / f"{PREFIX}link"
    link.symlink_to(other)
    remove_dead_folders(PREFIX)
    assert set(temporary.iterdir()) == {unlocked, other, link}
    assert (other / "lock").exists()
