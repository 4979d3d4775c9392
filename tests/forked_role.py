"""Roles that a server forks which has imported them: a start costs a tenth of the time."""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# What a role imports when it is started, and what is late there.
ROLES = {
    "frontend": ("frontend.config", "frontend.frontend"),
    "detok": ("detok.config", "detok.both_sides"),
    "worker": ("worker.config", "worker.serving"),
}
_EVERY_ROLE = ("uvloop", "shared.cli.program", "tests.forked_role")

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([*_EVERY_ROLE, *(name for late in ROLES.values() for name in late)])
# A status is there once: of two threads that look for it at a time, one reads nothing.
_looking = threading.Lock()


class ForkedRole:
    """`python -m ROLE FLAGS` in all but its first second, with the names of `subprocess.Popen`."""

    def __init__(self, role: str, flags: Sequence[str], log_file: Path, folder: Path) -> None:
        self._words = [role, *flags]
        log_file.touch()  # it may be read before the child writes
        self._process = _server.Process(
            target=_run,
            args=(role, list(flags), log_file, folder, os.environ | {"PYTHONPATH": str(folder)}),
            daemon=True,
        )
        with _looking:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _looking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0.0)
        return status

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run(
    role: str, flags: list[str], log_file: Path, folder: Path, environment: dict[str, str]
) -> None:
    """In the child: what an interpreter that was just started would find."""
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [role, *flags]
    importlib.import_module(f"{role}.__main__").PROGRAM.run(flags)
