"""Other builds of jetflock than the one under test: the one before it, and one that comes."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from shared.protocol.request import FEATURE_LEVEL
from tests.e2e.role_stack import REPOSITORY

NEXT_LEVEL = FEATURE_LEVEL + 1

_PREVIOUS = Path(__file__).parent / "previous_build"  # names a commit
_PACKAGES = ("frontend", "worker", "detok", "shared", "jetflock", "deploy")


def unpack_previous(folder: Path) -> Path:
    """The build of the commit that `previous_build` names.

    Skips the test where there is no history to have it: without git, in an archive, in a shallow
    clone. A whole history that lacks it fails the test: the file then names a wrong commit.
    """
    if shutil.which("git") is None or _git("rev-parse", "--is-shallow-repository") != b"false\n":
        pytest.skip("there is no whole history to take the previous build from")
    commit = _PREVIOUS.read_text().strip()
    packed = _git("archive", "--format=tar", commit, *_PACKAGES)
    assert packed, f"the history lacks commit {commit}, which {_PREVIOUS} names"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    assert source_of(folder) == folder
    return folder


def _git(*words: str) -> bytes:
    """What it prints; nothing when it fails."""
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=False)
    return b"" if done.returncode else done.stdout


def source_of(build: Path) -> Path:
    """Where a role that is started in this folder takes its modules from."""
    told = subprocess.run(
        [sys.executable, "-c", "import shared.errors; print(shared.errors.__file__)"],
        cwd=build,
        env=os.environ | {"PYTHONPATH": str(build)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(told.stdout.strip()).parents[1]


def make_next(folder: Path) -> Path:
    """This build, but that it knows one feature level more."""
    for package in _PACKAGES:
        weights = ("checkpoint",) if package == "deploy" else ()
        ignored = shutil.ignore_patterns("__pycache__", *weights)
        shutil.copytree(REPOSITORY / package, folder / package, ignore=ignored)
    path = folder / "shared/protocol/request.py"
    text, num_changes = re.subn(
        r"^FEATURE_LEVEL = \d+$", f"FEATURE_LEVEL = {NEXT_LEVEL}", path.read_text(), flags=re.M
    )
    assert num_changes == 1
    path.write_text(text)
    assert source_of(folder) == folder
    return folder
