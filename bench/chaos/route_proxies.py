"""What lies between the servers of a cluster: a proxy for each that dials another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple, Self

from bench.chaos.tcp_proxy import Side, TcpProxy

# Servers tell each other where the others are: nowhere but behind their proxies.
_NO_GOSSIP = "cluster {\n  advertise: 127.0.0.1:1\n  no_advertise: true\n"


class Way(NamedTuple):
    """From one server, by name, to another."""

    sender: str
    receiver: str


def write_config(shipped: Path, config: Path) -> Path:
    """The shipped configuration for servers that shall find each other by these proxies alone."""
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(shipped.read_text().replace("cluster {\n", _NO_GOSSIP, 1))
    return config


class RouteProxies:
    """Cuts what one server sends to another, and slows all. Used as a context manager."""

    def __init__(self, route_ports: Mapping[str, int]) -> None:
        """`route_ports`: where each server, by name, listens for the others."""
        self._proxies = {
            Way(dialer, target): TcpProxy(port)
            for dialer in route_ports
            for target, port in route_ports.items()
            if dialer != target
        }
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for proxy in self._proxies.values():
            await self._exits.enter_async_context(proxy)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exits.aclose()

    def urls(self, dialer: str) -> list[str]:
        """Whom this server dials. Only after the context is entered."""
        return [
            f"nats-route://127.0.0.1:{proxy.port}"
            for way, proxy in self._proxies.items()
            if way.sender == dialer
        ]

    @property
    def ways(self) -> list[Way]:
        """All there are."""
        return list(self._proxies)

    def ways_of(self, server: str) -> list[Way]:
        """From it and to it."""
        return [way for way in self._proxies if server in way]

    @staticmethod
    def ways_between(one: str, other: str) -> list[Way]:
        return [Way(*pair) for pair in itertools.permutations((one, other))]

    def cut(self, ways: Iterable[Way]) -> None:
        """What is sent there waits, until `mend`."""
        for way in ways:
            self._proxies[way].hold(Side.DIALER)
            self._proxies[Way(way.receiver, way.sender)].hold(Side.TARGET)

    def mend(self, ways: Iterable[Way]) -> None:
        """All that waited there arrives."""
        for way in ways:
            self._proxies[way].release(Side.DIALER)
            self._proxies[Way(way.receiver, way.sender)].release(Side.TARGET)

    def delay(self, delay_s: float) -> None:
        """Whatever is sent from now on takes so much longer."""
        for proxy in self._proxies.values():
            proxy.delay(delay_s)
