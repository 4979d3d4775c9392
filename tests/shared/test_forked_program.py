"""A program that is forked does what one does that is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.eventually import wait_until
from tests.forked_program import REPOSITORY, ForkedProgram, ModuleWords, run_program

pytestmark = pytest.mark.e2e

ENV = os.environ | {"PYTHONPATH": str(REPOSITORY)}


@pytest.mark.parametrize("words", [("version",), ("srve",)])
def test_its_output_and_status_are_those_of_a_started_one(words: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "jetflock", *words]
    started = subprocess.run(
        argv, cwd=REPOSITORY, env=ENV, capture_output=True, text=True, check=False
    )
    forked = run_program("jetflock", *words)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_it_has_its_command_line_and_ends_by_a_signal(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "worker.engine.scripted"]
    err = tmp_path / "err"
    program = ForkedProgram(argv, cwd=tmp_path, env=ENV, out=tmp_path / "out", err=err)
    assert program.wait(30) == 1
    assert "not enough values to unpack" in err.read_text()

    argv = [sys.executable, "-m", "detok", "--nats-url", "nats://127.0.0.1:1"]
    program = ForkedProgram(argv, cwd=tmp_path, env=ENV, out=tmp_path / "out", err=err)
    try:
        process = psutil.Process(program.pid)
        wait_until(lambda: process.cmdline()[1:2] == ["-m"])
        assert [word for word in process.cmdline() if word] == argv
        assert process.cwd() == str(tmp_path)
    finally:
        program.kill()
    assert program.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([sys.executable, "-c", "pass"], ENV),
        (["/usr/bin/python3", "-m", "detok"], ENV),
        ([sys.executable, "-m", "detok"], {}),
        ([sys.executable, "-W", "error", "-m", "detok"], ENV),
        ([sys.executable, "-m", "detok"], ENV | {"LD_PRELOAD": "libfaketime.so.1"}),
    ],
)
def test_another_program_is_not_forked(argv: list[str], env: dict[str, str]) -> None:
    assert ModuleWords.of(argv, env) is None
