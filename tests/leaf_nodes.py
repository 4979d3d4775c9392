"""A hub that holds the streams, and leaf nodes that dial it, as the shipped files make them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.eventually import Looks
from tests.nats_server import free_port

CONFIGS = Path(__file__).parents[1] / "deploy/nats"
DOMAIN = "hub"


class DomainServer:
    """A nats-server with one of these configurations: `kill` is kill -9, `start` brings it back."""

    def __init__(self, name: str, folder: Path, config: str, variables: dict[str, str]) -> None:
        self.folder = folder / name
        self.port = free_port()
        self._config = config
        self._variables = variables | {
            "NATS_NAME": name,
            "NATS_LISTEN": f"127.0.0.1:{self.port}",
            "NATS_STORE": str(self.folder / "store"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 10.0) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config"
        path.write_text(self._config)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).parent / "nats-server", "-c", path],
                env=os.environ | self._variables,
                stdout=log,
                stderr=log,
            )
        for _ in Looks(timeout_s, (self.folder / "log").read_text):
            if self._greets():
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False


class Hub(DomainServer):
    def __init__(self, folder: Path, further: str = "") -> None:
        self._leaf_port = free_port()
        config = (CONFIGS / "hub.conf").read_text() + further
        variables = {
            "NATS_LEAF_LISTEN": f"127.0.0.1:{self._leaf_port}",
            "NATS_LEAF_USER": "leaf",
            "NATS_LEAF_PASSWORD": "leaf-password",
            "NATS_JS_DOMAIN": DOMAIN,
        }
        super().__init__("hub", folder, config, variables)

    def leaf(self, name: str, further: str = "") -> DomainServer:
        config = (CONFIGS / "leaf.conf").read_text()
        url = f"nats-leaf://leaf:leaf-password@127.0.0.1:{self._leaf_port}"
        return DomainServer(name, self.folder.parent, config + further, {"NATS_HUB_URL": url})
