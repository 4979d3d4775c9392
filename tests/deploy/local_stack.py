"""A `jetflock serve` of one test: started, watched, stopped, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.eventually import Looks
from tests.forked_program import ForkedProgram, ModuleWords
from tests.nats_server import free_port

STAND_INS = (sys.executable, "-m", "tests.deploy.stand_in_stack")
_FRONT = {
    "frontend",
    "front",
    "deploy.local.front_process",
}  # of a stand-in, and with a detokenizer
REAL_ROLES = (sys.executable, "-m", "jetflock", "serve")
REPOSITORY = Path(__file__).parents[2]


def any_alive(processes: Sequence[psutil.Process]) -> bool:
    """Orphans that nobody reaps (a container without an init) are as dead as the others."""
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            continue
    return False


def _words(process: psutil.Process) -> list[str]:
    """Its command line; one that has just ended has none."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class LocalStack:
    """Its output lies in files, so that a full pipe stops nobody.

    It is forked where it is of the source of the tests, and so are its roles.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        program: Sequence[str] = STAND_INS,
        env: dict[str, str] | None = None,
        is_forked: bool = True,
    ) -> None:
        """Not `is_forked`: started as a user does."""
        self.folder = folder
        self.port = free_port()
        self.flags = ["--port", str(self.port), *flags]
        if "--data-dir" not in flags:
            self.flags += ["--data-dir", str(folder / "data")]
        self._program = program
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("JETFLOCK_")}
        # Commands of a user find the services of that user; those of other tests are not theirs.
        self._env |= {"PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(folder / "state")}
        self._env |= env or {}
        self._is_forked = is_forked and ModuleWords.of(program, self._env) is not None
        self._process: subprocess.Popen[bytes] | ForkedProgram | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedProgram:
        assert self._process is not None
        return self._process

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def start(self) -> LocalStack:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._is_forked:
            command = [*self._program, *self.flags]
            out_file, err_file = self.folder / "out", self.folder / "err"
            out_file.write_bytes(b"")
            err_file.write_bytes(b"")
            self._process = ForkedProgram(
                command, cwd=self.folder, env=self._env, out=out_file, err=err_file
            )
            return self
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [*self._program, *self.flags],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return self

    def wait_ready(self, timeout_s: float = 60.0) -> LocalStack:
        for _ in Looks(timeout_s, lambda: self.err):
            if "Ctrl-C stops it." in self.out or '"event":"ready"' in self.out:
                break
            assert self.process.poll() is None, self.err
        return self

    def processes(self) -> list[psutil.Process]:
        """The whole tree below `jetflock serve`."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def roles(self, name: str) -> list[psutil.Process]:
        """The processes of a role, by a word at the start of their command lines."""
        words = _FRONT if name == "frontend" else {name}
        return [
            process
            for process in psutil.Process(self.process.pid).children()
            if any(Path(word).name in words for word in _words(process)[:4])
        ]

    def role(self, name: str) -> psutil.Process:
        found = self.roles(name)
        assert found, f"no {name}: {self.err}"
        return found[0]

    @property
    def nats_url(self) -> str:
        lines = self.out.splitlines()
        for line in lines:
            if line.startswith('{"event":"ready"'):
                return str(json.loads(line)["nats_url"])
        return next(line for line in lines if line.startswith("  NATS")).split()[1]

    def interrupt(self, signum: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(signum)

    def wait_exit(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """After a test, whatever happened in it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
