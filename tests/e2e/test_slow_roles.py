"""Every role with a tenth of a core, and every role on a slow link: all is late, nothing wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.chaos.tcp_proxy import TcpProxy
from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.nats_server import NatsServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timed,
    pytest.mark.timeout(240),
]

NUM_STREAMS = 4
NUM_TOKENS = 100
RUNS_S, STANDS_S = 0.05, 0.45
PATIENCE_S = 120.0


class FarServer(NatsServer):
    """Met by way of a proxy."""

    far_port = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.far_port}"


@contextlib.asynccontextmanager
async def slowed(roles: list[RoleProcess]) -> AsyncIterator[None]:
    """Each runs a tenth of the time, and not all of them at once."""
    async with asyncio.TaskGroup() as tasks:
        slowing = [
            tasks.create_task(_slow_down(role, idx * RUNS_S)) for idx, role in enumerate(roles)
        ]
        yield
        for task in slowing:
            task.cancel()


async def _slow_down(role: RoleProcess, first_s: float) -> None:
    try:
        await asyncio.sleep(first_s)
        while True:
            await asyncio.to_thread(role.freeze)
            await asyncio.sleep(STANDS_S)
            role.thaw()
            await asyncio.sleep(RUNS_S)
    finally:
        role.thaw()


async def read_all(stack: RoleStack) -> list[Stream]:
    """A few streams at once, each from its beginning to its end."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        urls = [stack.url(role) for role in stack.roles if role.name.startswith("frontend")]
        bodies = [completion_body(seed=seed, max_tokens=NUM_TOKENS) for seed in range(NUM_STREAMS)]
        streams = [Stream() for _ in bodies]
        for idx, (stream, body) in enumerate(zip(streams, bodies, strict=True)):
            tasks.create_task(stream.post(urls[idx % len(urls)], body))
    return streams


async def start_rest(stack: RoleStack) -> None:
    """Two of each role."""
    stack.start_frontend()
    stack.start_detok()
    for _ in range(2):
        stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2, 120.0)


async def assert_exact(stack: RoleStack, streams: list[Stream]) -> None:
    """As they are undisturbed, and no role is lost."""
    assert all(stream.is_done and stream.error is None for stream in streams)
    for seed, stream in enumerate(streams):
        whole = await run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS)
        assert stream.text == whole.text
    assert all(role.is_alive for role in stack.roles)


async def test_every_role_has_a_tenth_of_a_core(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        await start_rest(stack)
        async with slowed(stack.roles):
            streams = await read_all(stack)
        await assert_exact(stack, streams)


@pytest.mark.parametrize("round_trip_s", [0.4, 1.0])
async def test_every_role_is_far_from_its_server(tmp_path: Path, round_trip_s: float) -> None:
    nats = FarServer(tmp_path / "nats")
    async with TcpProxy(nats.port, delay_s=round_trip_s / 2) as proxy:
        nats.far_port = proxy.port
        async with RoleStack(tmp_path, nats=nats) as stack:
            await start_rest(stack)
            streams = await read_all(stack)
            await assert_exact(stack, streams)
