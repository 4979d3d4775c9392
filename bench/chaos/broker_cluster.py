"""Three nats-servers with the shipped configuration, each of which dials its peers by proxies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.chaos.broker import Broker
from bench.chaos.route_proxies import RouteProxies, write_config
from deploy.local.http_probe import answers_ok
from deploy.local.ports import free_port

SHIPPED_CONFIG = Path(__file__).parents[2] / "deploy/nats/cluster.conf"
NUM_SERVERS = 3
_START_TIMEOUT_S = 60.0


class BrokerCluster:
    """All `servers`, and the `routes` between them."""

    def __init__(
        self, folder: Path, store: Path, make_sink: Callable[[str], Callable[[str], None]]
    ) -> None:
        """`make_sink` opens the log of a name."""
        self._config = write_config(SHIPPED_CONFIG, folder / "cluster.conf")
        self._store = store
        self._make_sink = make_sink
        self._route_ports = {f"nats-{i + 1}": free_port() for i in range(NUM_SERVERS)}
        self._monitor_ports = {name: free_port() for name in self._route_ports}
        self._servers: list[Broker] = []
        self.routes = RouteProxies(self._route_ports)

    @property
    def servers(self) -> Sequence[Broker]:
        return self._servers

    def named(self, name: str) -> Broker:
        return next(server for server in self._servers if server.name == name)

    async def start(self) -> None:
        await self.routes.__aenter__()
        self._servers = [self._server(name) for name in self._route_ports]
        await asyncio.gather(*(server.start() for server in self._servers))
        await self.wait_whole()

    async def kill(self) -> None:
        await asyncio.gather(*(server.kill() for server in self._servers))
        await self.routes.__aexit__(None, None, None)

    async def is_whole(self) -> bool:
        """A server is healthy when it holds all that its streams and consumers hold elsewhere."""
        ports = self._monitor_ports.values()
        asked = (answers_ok("127.0.0.1", port, "/healthz") for port in ports)
        return all(await asyncio.gather(*asked))

    async def wait_whole(self) -> None:
        """Raises TimeoutError."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not await self.is_whole():
            if time.monotonic() > deadline:
                raise TimeoutError("the nats-servers are not all healthy; see their logs")
            await asyncio.sleep(0.1)

    def _server(self, name: str) -> Broker:
        port, store = free_port(), self._store / name
        environ = {
            "NATS_NAME": name,
            "NATS_LISTEN": f"127.0.0.1:{port}",
            "NATS_ROUTE_LISTEN": f"127.0.0.1:{self._route_ports[name]}",
            "NATS_ROUTES": json.dumps(self.routes.urls(name)),
            "NATS_STORE": str(store),
        }
        arguments = ["-c", str(self._config), "-m", str(self._monitor_ports[name])]
        return Broker(name, port, store, arguments, environ, self._make_sink(name))
