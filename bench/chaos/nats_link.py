"""How one role reaches NATS: a proxy before each server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bench.chaos.tcp_proxy import TcpProxy


class NatsLink:
    """What is done to the link is done to the connections to all servers."""

    def __init__(self, proxies: Sequence[TcpProxy]) -> None:
        self._proxies = proxies

    @classmethod
    @asynccontextmanager
    async def open(cls, ports: Iterable[int]) -> AsyncIterator[NatsLink]:
        """`ports`: where the servers listen."""
        async with AsyncExitStack() as exits:
            yield cls([await exits.enter_async_context(TcpProxy(port)) for port in ports])

    @property
    def url(self) -> str:
        """For the role's --nats-url."""
        return ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in self._proxies)

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def half_open(self) -> None:
        for proxy in self._proxies:
            proxy.half_open()

    def stall(self) -> None:
        for proxy in self._proxies:
            proxy.stall()

    def unstall(self) -> None:
        for proxy in self._proxies:
            proxy.unstall()
