"""A real nats-server for one test: started, killed, restarted on its store."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.eventually import Looks
from tests.freezing import freeze, thaw

# Below those that systems give to connections that go out: none of these takes the port of a
# server that does not listen yet, or was killed, and who tries to reach it does not meet itself.
_PORTS = range(10_000, 32_768)
PROCESS = "JETFLOCK_TEST_PROCESS"  # which of those that run tests this one is, and of how many


@functools.cache
def _our_ports() -> Iterator[int]:
    """The share of this process among those that run tests, in an order of its own."""
    number, _, num_processes = os.environ.get(PROCESS, "0/1").partition("/")
    ports = list(_PORTS[int(number) :: int(num_processes)])
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


def free_port() -> int:
    """One that is free, and that no other process of these tests is given."""
    while True:
        port = next(_our_ports())
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            return port


# What streams may reserve is no share of the disk's free room: nobody fills it.
_ROOM = "jetstream { max_file_store: 1TB }"


class NatsServer:
    def __init__(self, folder: Path, port: int | None = None, config: str = "") -> None:
        self.folder = folder
        self._config = config  # further lines of the configuration file
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 60.0) -> None:
        binary = Path(sys.executable).parent / "nats-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(self._config)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary,
                    "-a",
                    "127.0.0.1",
                    "-p",
                    str(self.port),
                    "-js",
                    "-sd",
                    self.folder,
                    "-c",
                    self.folder / "config",
                ],
                stdout=log,
                stderr=log,
            )
        for _ in Looks(timeout_s, (self.folder / "log").read_text, 0.02):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe,
            ):
                if probe.recv(4) == b"INFO":
                    return
            assert self._process.poll() is None, (self.folder / "log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """It writes down what it knows, and ends."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None

    def _write(self, config: str) -> None:
        (self.folder / "config").write_text(f"{_ROOM}\n{config}")

    def reload(self, config: str) -> None:
        """A running server reads it, and turns away whom it does not name any more."""
        assert self._process is not None
        self._write(config)
        self._process.send_signal(signal.SIGHUP)

    def pause(self) -> None:
        assert self._process is not None
        freeze(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        thaw(self._process.pid)
