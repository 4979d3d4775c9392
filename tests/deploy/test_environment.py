"""A checkout's environment is made with a line of progress, and a failure shows its reason."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deploy.environment import has_own_sources, phase
from tests.deploy.local_stack import REPOSITORY

pytestmark = pytest.mark.e2e

SCRIPT = REPOSITORY / "deploy" / "environment.py"


def test_what_an_installer_does_is_told_in_a_few_words() -> None:
    assert phase("Collecting torch==2.13.0 (from jetflock==0.1.0)\n", 7) == (
        "7 packages looked up: torch==2.13.0"
    )
    assert phase("  Downloading https://x/y/torch-2.13.0-cp311.whl (191.8 MB)\n", 7) == (
        "7 packages looked up: torch (191.8 MB)"
    )
    assert phase("Installing collected packages: a, b, c\n", 3) == "installing 3 packages"
    assert phase("\n", 3) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", False),
        ("global.cert='/etc/ca.crt'\nglobal.timeout='60'\n", False),
        (":env:.find-links='/opt/wheels'\n", True),
        ("global.extra-index-url='https://mirror/simple'\n", True),
    ],
)
def test_sources_that_pip_is_told_of_are_kept(settings: str, expected: bool) -> None:
    assert has_own_sources(settings) is expected


def make_venv(venv: Path) -> None:
    """With the pip of this one, which is not installed anew: that takes longer than all else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [site] = (venv / "lib").glob("python3*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")


def make(venv: Path, *words: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "serve", "--venv", str(venv), *words],
        env={"PATH": path, "HOME": str(venv.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.slow
def test_a_failure_shows_the_end_of_the_log_and_uv_is_followed_by_pip(tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\necho uv was here; exit 1\n")
    uv.chmod(0o755)
    path = f"{uv.parent}:/usr/bin:/bin"
    make_venv(tmp_path / "venv")
    done = make(tmp_path / "venv", "--pip-args=--no-index", path=path)
    assert done.returncode == 1
    log = (tmp_path / "venv" / "install.log").read_text()
    said = done.stderr
    if "pip's settings" not in said:  # where this machine's pip has sources, uv is left out
        assert "uv was here" in log
        assert "uv has failed: pip installs" in said
    assert f"the end of {tmp_path / 'venv'}/install.log:" in said
    assert "No matching distribution found" in said
    assert len(said.splitlines()) < 40
    assert "\r" not in said  # nothing is written over where nobody looks on


def test_it_needs_the_standard_library_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
