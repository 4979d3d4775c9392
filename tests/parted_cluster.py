"""Three nats-servers whose routes a test can cut: both ways, one way, one link alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.chaos.route_proxies import RouteProxies, Way, write_config
from tests.nats_cluster import CONFIG, ClusteredServer, NatsCluster


class PartedCluster(NatsCluster):
    """Each server dials each other through a proxy of that pair."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, write_config(CONFIG, folder / "cluster.conf"))
        self._proxies = RouteProxies({server.name: server.route_port for server in self.servers})

    async def __aenter__(self) -> PartedCluster:
        await self._proxies.__aenter__()
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.kill()
        await self._proxies.__aexit__(*exc_info)

    def routes(self, server: ClusteredServer) -> list[str]:
        return self._proxies.urls(server.name)

    def cut(self, sender: ClusteredServer, receiver: ClusteredServer) -> None:
        """What one sends does not reach the other."""
        self._proxies.cut([Way(sender.name, receiver.name)])

    def cut_link(self, one: ClusteredServer, other: ClusteredServer) -> None:
        self._proxies.cut(self._proxies.ways_between(one.name, other.name))

    def isolate(self, server: ClusteredServer) -> None:
        self._proxies.cut(self._proxies.ways_of(server.name))

    def heal(self) -> None:
        self._proxies.mend(self._proxies.ways)
