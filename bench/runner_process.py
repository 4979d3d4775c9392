"""The benchmark's side of `bench.peers.runner`: starts one, gives it runs, reads its memory."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

import bench
from bench.peers.runner import RequestTrace

EXIT_TIMEOUT_S = 20.0


class RunnerProcess:
    """A runner as a child. A context: it is ended at the exit, killed when it does not go.

    What it prints to stderr goes to `log_path`, and is shown when it dies. A cluster whose roles
    watch each other's heartbeats must not be suspended.
    """

    def __init__(
        self,
        name: str,
        python: Path,
        flags: Sequence[str],
        environment: dict[str, str],
        log_path: Path,
        *,
        may_suspend: bool = True,
    ) -> None:
        begin = time.perf_counter()
        self.name = name
        self._log_path = log_path
        self._may_suspend = may_suspend
        with log_path.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", f"bench.peers.{name}_runner", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=runner_environment(environment),
            )
        try:
            self.version = str(self._reply()["version"])
        except BaseException:
            self._kill_tree()
            raise
        self.load_s = time.perf_counter() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        for process in self._tree():
            process.resume()
        self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill_tree()

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        """One run. The peak of the memory is counted anew from here."""
        for process in self._tree():
            process.resume()
            _reset_peak(process.pid)
        assert self._process.stdin is not None
        job = {"prompts": prompts, "output_len": output_len}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return [RequestTrace(*request) for request in self._reply()["requests"]]

    def peak_bytes(self) -> int:
        """Most resident memory since the last run began, summed over its processes."""
        return sum(_peak_bytes(process.pid) for process in self._tree())

    def cpu_s(self) -> float:
        """That its processes have taken so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._tree())

    def suspend(self) -> None:
        """Until the next run: some engines spin while they wait."""
        if not self._may_suspend:
            return
        for process in self._tree():
            process.suspend()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log_path.read_text().splitlines()[-15:])
            raise SystemExit(f"the {self.name} runner died:\n{tail}\nsee {self._log_path}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _tree(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def _kill_tree(self) -> None:
        for process in reversed(self._tree()):
            process.kill()
        self._process.wait()


def runner_environment(variables: dict[str, str]) -> dict[str, str]:
    """Ours, these, and the way to `bench` from the environment of a peer."""
    assert bench.__file__ is not None
    folder = str(Path(bench.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path} | variables


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5): VmHWM starts again


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that is ending has no memory
