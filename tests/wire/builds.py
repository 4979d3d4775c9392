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
    """The build of the commit that `previous_build` names; skips the test where git lacks it."""
    commit = _PREVIOUS.read_text().strip()
    try:
        packed = subprocess.run(
            ["git", "archive", "--format=tar", commit, *_PACKAGES],
            cwd=REPOSITORY,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no git to take the previous build from")
    if packed.returncode:
        pytest.skip(
            f"the previous build is commit {commit}, which the history here lacks (an archive, or "
            f"a shallow clone): {packed.stderr.decode(errors='replace').strip()[:200]}"
        )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    assert source_of(folder) == folder
    return folder


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
