"""Every role is gone within its grace after SIGTERM, whatever has become of NATS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import httpx
import pytest

from bench.chaos.tcp_proxy import TcpProxy
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.nats_server import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

# Their own grace for what runs, the time to leave, and what a loaded machine adds.
LONGEST_S = 25.0


@pytest.mark.parametrize(
    "trouble", ["stopped", pytest.param("refused", marks=pytest.mark.nightly), "swallowed"]
)
async def test_every_role_leaves_in_time(tmp_path: Path, trouble: str) -> None:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    async with TcpProxy(nats.port) as proxy:
        url = ("--nats-url", f"nats://127.0.0.1:{proxy.port}")
        stack = RoleStack(tmp_path, nats=_Running(nats, url[1]))
        async with stack:
            stack.start_worker(*SCRIPTED)
            stack.start_autoscaler("--workers", "1", *SCRIPTED)
            await stack.wait_ready(2)
            stream = Stream()
            reading = asyncio.create_task(_read(stream, stack))
            await stream.wait_for_tokens(10)
            if trouble == "stopped":
                nats.pause()
            elif trouble == "refused":
                nats.kill()
            else:
                proxy.swallow()
            await asyncio.sleep(0.5)
            started = time.monotonic()
            for role in stack.roles:
                role.process.terminate()
            took = {}
            for role in stack.roles:
                await asyncio.to_thread(role.process.wait, LONGEST_S)
                took[role.name] = round(time.monotonic() - started, 1)
            print(trouble, took)
            await asyncio.wait([reading])
            assert max(took.values()) < LONGEST_S
            assert not any("left_by_force" in role.log for role in stack.roles), took
            if trouble == "stopped":
                nats.resume()


class _Running(NatsServer):
    """A server that runs already, and is met by way of a proxy."""

    def __init__(self, real: NatsServer, url: str) -> None:
        super().__init__(real.folder, real.port)
        self._real, self._url = real, url

    @property
    def url(self) -> str:
        return self._url

    def start(self, timeout_s: float = 10.0) -> None:
        pass

    def kill(self) -> None:
        self._real.kill()


async def _read(stream: Stream, stack: RoleStack) -> None:
    """It runs meanwhile, to whatever end."""
    with contextlib.suppress(httpx.HTTPError, AssertionError):
        await stream.post(stack.url(), completion_body(max_tokens=450))
