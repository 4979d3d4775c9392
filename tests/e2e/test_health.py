"""Probes of real processes: while they load, work, drain, hang, and while NATS is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.eventually import Looks
from tests.nats_server import free_port
from tests.shared.status.test_health import get, until

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

HANG_TOKEN = 77


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def streaming(stack: RoleStack, **fields: Any) -> AsyncIterator[Stream]:
    stream = Stream()
    task = asyncio.create_task(stream.post(stack.url(), completion_body(**fields)))
    try:
        yield stream
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until_served(port: int, role: RoleProcess) -> None:
    async for _ in Looks(30, lambda: role.log):
        assert role.is_alive, role.log
        with contextlib.suppress(OSError):
            await asyncio.to_thread(get, port, "/health/live")
            return


async def until_why(port: int, path: str, words: str) -> None:
    """503, and one of the reasons says this."""
    async for _ in Looks():
        body = await until(port, path, 503)
        if any(words in why for why in body["why"]):
            return


async def until_metric(port: int, line: str) -> str:
    """The metrics, once this is among them."""
    async for _ in Looks():
        _, text = await asyncio.to_thread(get, port, "/metrics")
        if line in text:
            break
    return text


async def test_a_worker_tells_how_it_is(stack: RoleStack) -> None:
    port = free_port()
    worker = stack.start_worker(
        *SCRIPTED, "--metrics-port", str(port), "--shutdown-timeout-s", "60",
        "--scripted-hang-token", str(HANG_TOKEN), "--hang-timeout-s", "12",
    )  # fmt: skip
    await until_served(port, worker)
    await until(port, "live", 200)
    await until(port, "ready", 200)
    text = await until_metric(port, 'jetflock_worker_state{model_name="demo",state="ready"} 1.0')
    assert 'jetflock_last_step_age_seconds{model_name="demo"} 0.0' in text

    stack.nats.kill()
    await until_why(port, "ready", "NATS cannot be reached")
    await until(port, "live", 200)
    await asyncio.to_thread(stack.nats.start)
    await until(port, "ready", 200)

    async with streaming(stack, max_tokens=1000) as stream:
        await stream.wait_for_tokens(5)
        worker.process.terminate()
        await until_why(port, "ready", "the worker is draining")
        await until(port, "live", 200)
        text = await until_metric(port, 'state="draining"} 1.0')
        assert 'state="ready"} 0.0' in text
        assert await stream.moves()
        worker.process.terminate()
        assert await asyncio.to_thread(worker.process.wait, 20) == 0


async def test_a_worker_whose_engine_is_silent_is_alive_until_it_hangs(stack: RoleStack) -> None:
    port = free_port()
    worker = stack.start_worker(
        *SCRIPTED, "--metrics-port", str(port),
        "--scripted-hang-token", str(HANG_TOKEN), "--hang-timeout-s", "4",
    )  # fmt: skip
    await stack.wait_ready(1)
    async with streaming(stack, prompt=[300, HANG_TOKEN]):
        await until_why(port, "ready", "no step for")
        status, _ = await asyncio.to_thread(get, port, "/health/live")
        assert status == 200
        assert await asyncio.to_thread(worker.process.wait, 30) == 70


async def test_a_detokenizer_tells_whether_its_partitions_are_read(stack: RoleStack) -> None:
    first, ports = stack.roles[1], [free_port(), free_port()]
    for port in ports:
        detok = stack.start_detok("--metrics-port", str(port))
        await until_served(port, detok)
        await until(port, "ready", 200)
    await asyncio.to_thread(first.stop)
    stack.nats.kill()
    for port in ports:
        await until_why(port, "ready", "NATS cannot be reached")
        await until(port, "live", 200)
    await asyncio.to_thread(stack.nats.start)
    for port in ports:
        await until(port, "ready", 200)
    stack.nats.kill()
    for detok in stack.roles[2:]:
        assert await asyncio.to_thread(detok.stop) < 4.0, "it waits for no broker"
        assert detok.process.returncode == 0
    await asyncio.to_thread(stack.nats.start)


async def test_a_frontend_is_ready_without_workers_and_not_without_nats(stack: RoleStack) -> None:
    port = next(iter(stack.ports.values()))
    await until_served(port, stack.roles[0])
    await until(port, "ready", 200)
    await until(port, "live", 200)
    stack.nats.kill()
    await until_why(port, "ready", "NATS cannot be reached")
    await until_why(port, "ready", "the queue cannot be seen")
    await until(port, "live", 200)
    await asyncio.to_thread(stack.nats.start)
    await until(port, "ready", 200)
