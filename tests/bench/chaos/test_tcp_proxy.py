"""What a proxy delays or holds arrives later, whole and in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.chaos.route_proxies import RouteProxies, Way
from bench.chaos.tcp_proxy import Side, TcpProxy
from tests.eventually import eventually
from tests.time_to_err import time_to_err

NUMBERS = [b"%06d" % number for number in range(200)]
WAIT_S = 20.0


@asynccontextmanager
async def collector(received: bytearray) -> AsyncIterator[int]:
    """The port of a server that keeps what it hears."""

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            received.extend(data)
        writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def until_all(received: bytearray) -> None:
    await eventually(lambda: len(received) >= len(b"".join(NUMBERS)), WAIT_S)


async def test_what_follows_a_delay_does_not_overtake_it() -> None:
    received = bytearray()
    async with collector(received) as port, TcpProxy(port, delay_s=0.3) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for idx, number in enumerate(NUMBERS):
            if idx == len(NUMBERS) // 2:
                proxy.delay(0.0)
            writer.write(number)
            await asyncio.sleep(0.001)  # each in a segment of its own
        await until_all(received)
        writer.close()
    assert received == b"".join(NUMBERS)


async def test_only_the_side_that_is_held_waits() -> None:
    received = bytearray()
    async with collector(received) as port, TcpProxy(port) as proxy:
        proxy.hold(Side.DIALER, Side.TARGET)
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"".join(NUMBERS))
        proxy.release(Side.TARGET)
        await time_to_err(0.1)
        assert not received
        proxy.release(Side.DIALER)
        await until_all(received)
        writer.close()


async def test_a_way_that_is_cut_does_not_cut_the_way_back() -> None:
    """Of two proxies between two servers each carries both ways: by whoever dialled."""
    heard_by_a, heard_by_b = bytearray(), bytearray()
    async with (
        collector(heard_by_a) as port_a,
        collector(heard_by_b) as port_b,
        RouteProxies({"a": port_a, "b": port_b}) as routes,
    ):
        routes.cut([Way("a", "b")])
        await dial_and_write(routes.urls("b"))
        await dial_and_write(routes.urls("a"))
        await until_all(heard_by_a)
        assert not heard_by_b
        routes.mend([Way("a", "b")])
        await until_all(heard_by_b)


async def dial_and_write(urls: list[str]) -> None:
    (url,) = urls
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"".join(NUMBERS))
    await writer.drain()
