"""`pytest -n`: what each process says of its tests is told, and so is its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.deploy.local_stack import any_alive
from tests.eventually import wait_until
from tests.forked_program import REPOSITORY

pytestmark = pytest.mark.e2e

FIRST = """
import os, time, pytest

@pytest.fixture(scope="session")
def taken_down(tmp_path_factory):
    yield
    tmp_path_factory.mktemp("taken-down")

def test_it_passes(taken_down, tmp_path):
    print("not to be shown")

def test_it_fails():
    print("what it said")
    assert 1 == 2

@pytest.mark.timeout(1)
def test_it_hangs():
    time.sleep(60)

num_attempts = []

@pytest.mark.flaky(reruns=2)
def test_it_passes_at_last():
    num_attempts.append(1)
    assert len(num_attempts) == 3

def test_it_ends_its_process(taken_down):
    os._exit(3)

def test_another_process_goes_on(taken_down):
    pass
"""
SECOND = """
import os

def test_it_is_one_of_two():
    assert os.environ["JETFLOCK_TEST_PROCESS"] in ("0/2", "1/2")
"""
LONG = """
import subprocess, time, pytest

@pytest.fixture
def slow(tmp_path_factory):
    process = subprocess.Popen(["sleep", "60"])
    folder = tmp_path_factory.getbasetemp()
    (folder / "number").write_text(str(process.pid))
    (folder / "number").rename(folder / "started")
    yield
    (folder / "taken-down").touch()

def test_it_takes_long(slow):
    time.sleep(60)
"""


def hear_ctrl_c() -> None:
    """Also where these tests run behind a shell that goes on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, **modules: str) -> subprocess.Popen[str]:
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
         "--tb=short", "-c", REPOSITORY / "pyproject.toml", "--rootdir", folder,
         "--basetemp", folder / "base", "-n", "2", folder],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip


def test_each_failure_is_told_and_nothing_is_left_out(tmp_path: Path) -> None:
    program = start(tmp_path, first=FIRST, second=SECOND)
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 1, out
    assert "3 failed, 4 passed, 2 rerun" in out, out
    assert "what it said" in out
    assert "not to be shown" not in out
    assert "E   Failed: Timeout (>1.0s)" in out
    assert "the process of this test ended with status 3" in out
    assert len(list(tmp_path.glob("base/process-*/taken-down0"))) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_fixtures_are_taken_down_when_the_process_that_reports_ends(
    signum: signal.Signals, tmp_path: Path
) -> None:
    program = start(tmp_path, long=LONG)
    told = tmp_path / "base/process-0"
    wait_until((told / "started").exists, 60)
    left = psutil.Process(int((told / "started").read_text()))
    program.send_signal(signum)
    wait_until((told / "taken-down").exists, 60)
    out, _ = program.communicate(timeout=60)
    if signum == signal.SIGINT:
        assert "KeyboardInterrupt" in out
        assert not any_alive([left]), "what a test leaves is killed"
