"""A misspelt variable is told; those of other commands, of Kubernetes and of the tests are not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jetflock.command_line import command_program
from jetflock.command_line.command_program import complaints, program_of
from jetflock.command_line.command_table import Command
from shared.cli.program import Program
from tests.deploy.local_stack import REPOSITORY


def test_what_no_command_has_is_told_with_the_nearest_that_one_has() -> None:
    environ = {"JETFLOCK_MAX_RUNING": "8", "JETFLOCK_QQQ": "fast", "HOME": "/"}
    assert list(complaints("worker", environ)) == [
        "JETFLOCK_MAX_RUNING is set, and is no variable of any command. "
        "Did you mean JETFLOCK_MAX_RUNNING?",
        "JETFLOCK_QQQ is set, and is no variable of any command.",
    ]


def test_what_others_have_or_set_is_not() -> None:
    environ = {
        "JETFLOCK_MAX_RUNNING": "8",
        "JETFLOCK_PORT": "tcp://10.0.0.7:8000",  # as Kubernetes links a Service `jetflock`
        "JETFLOCK_FRONTEND_SERVICE_HOST": "10.0.0.7",
        "JETFLOCK_FRONTEND_SERVICE_PORT_HTTP": "8000",
        "JETFLOCK_PORT_8000_TCP_ADDR": "10.0.0.7",
        "JETFLOCK_CONFIG": "flags.yaml",
        "JETFLOCK_TEST_DEEP": "1",
        "JETFLOCK_URL": "http://127.0.0.1:8000",  # of chat
    }
    assert list(complaints("worker", environ)) == []


def test_where_a_command_cannot_be_imported_only_what_is_near_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the image of one role: what is unknown may be the variable of another."""

    def program(command: Command) -> Program:
        if command.module == "frontend":
            raise ModuleNotFoundError(name="starlette")
        return program_of(command)

    monkeypatch.setattr(command_program, "program_of", program)
    environ = {"JETFLOCK_MAX_RUNING": "8", "JETFLOCK_ORPHAN_WAIT_S": "8"}
    [told] = complaints("worker", environ)
    assert told.startswith("JETFLOCK_MAX_RUNING ")


@pytest.mark.e2e
def test_a_command_warns_and_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jetflock", "worker", "--help"],
        cwd=REPOSITORY,
        env=os.environ | {"JETFLOCK_NUM_THREAD": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == (
        "jetflock worker: JETFLOCK_NUM_THREAD is set, and is no variable of any command. "
        "Did you mean JETFLOCK_NUM_THREADS?\n"
    )
    assert done.stdout.startswith("Usage: jetflock worker")
