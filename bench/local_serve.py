"""`jetflock serve` as a child of a benchmark, and the CPU time of its processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from deploy.local.ports import free_port

ROLES = ("frontend", "detok", "worker", "nats-server")


@dataclass(frozen=True)
class LocalServe:
    """A running stack."""

    port: int
    process: psutil.Process

    def role_processes(self, role: str) -> list[psutil.Process]:
        """Of a role; of the worker only the I/O process, not its engine."""
        return [child for child in self.process.children(recursive=True) if _role(child) == role]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by role."""
        seconds = dict.fromkeys(ROLES, 0.0)
        for child in self.process.children(recursive=True):
            role = _role(child)
            if role in seconds:
                times = child.cpu_times()
                seconds[role] += times.user + times.system
        return seconds


def _role(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
    if words and words[0].endswith("nats-server"):
        return "nats-server"
    if "deploy.local.front_process" in words[:5]:
        return "frontend"
    for role in ("frontend", "detok", "worker", "worker.engine"):
        if role in words[:5]:
            return role
    return ""


@contextmanager
def local_serve(*flags: str, timeout_s: float = 60.0, key: str = "none") -> Iterator[LocalServe]:
    """Start the stack on a free port with a store of its own; stop it at the end.

    `key` is an API key, where the flags ask for one.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jetflock",
                "serve",
                "--port",
                str(port),
                "--data-dir",
                folder,
                "--log-level",
                "warning",
                *flags,
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_ready(port, process, timeout_s, key)
            yield LocalServe(port, psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(
    port: int, process: subprocess.Popen[bytes], timeout_s: float, key: str = "none"
) -> None:
    """Ready is when a request is answered: that takes every role."""
    deadline = time.monotonic() + timeout_s
    body = b'{"text": "a", "sampling_params": {"max_new_tokens": 1}}'
    while time.monotonic() < deadline and process.poll() is None:
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", body, headers)
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the stack did not become ready")
