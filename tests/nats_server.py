"""A real nats-server for one test: started, killed, restarted on its store."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.freezing import freeze, thaw


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class NatsServer:
    def __init__(self, folder: Path, port: int | None = None, config: str = "") -> None:
        self.folder = folder
        self._config = config  # further lines of the configuration file
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 10.0) -> None:
        binary = Path(sys.executable).parent / "nats-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config").write_text(self._config)
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
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe:
                    if probe.recv(4) == b"INFO":
                        return
            except OSError:
                pass
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.02)

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

    def pause(self) -> None:
        assert self._process is not None
        freeze(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        thaw(self._process.pid)
