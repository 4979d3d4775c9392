"""Three real nats-servers that hold streams together, each of which a test may kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.eventually import Looks
from tests.freezing import freeze, thaw
from tests.nats_server import free_port

CONFIG = Path(__file__).parents[1] / "deploy/nats/cluster.conf"
BINARY = Path(sys.executable).parent / "nats-server"
SIZE = 3


def monitored(port: int, path: str) -> dict[str, Any]:
    """What the monitoring port of a server says; {} when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, urllib.error.URLError, ValueError):
        return {}


class ClusteredServer:
    """One server of the cluster: `kill` is kill -9, `start` again brings it back on its store."""

    def __init__(self, name: str, folder: Path, config: Path = CONFIG) -> None:
        self.name = name
        self.port, self.route_port, self.monitor_port = free_port(), free_port(), free_port()
        self._folder = folder / name
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.binary = BINARY  # that `start` runs

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def route_url(self) -> str:
        return f"nats-route://127.0.0.1:{self.route_port}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def start(self, routes: list[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        environ = os.environ | {
            "NATS_NAME": self.name,
            "NATS_LISTEN": f"127.0.0.1:{self.port}",
            "NATS_ROUTE_LISTEN": f"127.0.0.1:{self.route_port}",
            "NATS_ROUTES": json.dumps(routes),
            "NATS_STORE": str(self._folder / "store"),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, "-c", self._config, "-m", str(self.monitor_port)],
                env=environ,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def leave(self, timeout_s: float = 60.0) -> None:
        """As `nats-server --signal ldm`: clients and what it leads go elsewhere, then it ends."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR2)
        self._process.wait(timeout_s)
        self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        freeze(self._process.pid)

    def thaw(self) -> None:
        if self._process is not None:
            thaw(self._process.pid)

    def monitor(self, path: str) -> dict[str, Any]:
        """What the monitoring port says; {} when it does not answer."""
        return monitored(self.monitor_port, path)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


class NatsCluster:
    """Stands where a single `NatsServer` stands: `url` names all three."""

    def __init__(self, folder: Path, config: Path = CONFIG) -> None:
        self.servers = [ClusteredServer(f"n{i + 1}", folder, config) for i in range(SIZE)]

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def start(self, timeout_s: float = 60.0) -> None:
        """Returns when the three have a leader and are current."""
        for server in self.servers:
            if not server.is_alive:
                self.start_one(server)
        for _ in Looks(timeout_s, lambda: "\n".join(server.log for server in self.servers)):
            if all(server.monitor("healthz").get("status") == "ok" for server in self.servers):
                break

    def start_one(self, server: ClusteredServer) -> None:
        server.start(self.routes(server))

    def routes(self, _: ClusteredServer) -> list[str]:
        """Whom a server dials; itself among them does not matter."""
        return [other.route_url for other in self.servers]

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def named(self, name: str) -> ClusteredServer:
        return next(server for server in self.servers if server.name == name)

    async def meta_leader(self, timeout_s: float = 60.0) -> ClusteredServer:
        """Of JetStream itself: who places streams and consumers."""

        def ask() -> str:
            for server in self.servers:
                if server.is_alive:
                    leader = server.monitor("jsz").get("meta_cluster", {}).get("leader", "")
                    if leader and self.named(leader).is_alive:
                        return str(leader)
            return ""

        async for _ in Looks(timeout_s, "JetStream has no leader"):
            if leader := await asyncio.to_thread(ask):
                break
        return self.named(leader)
