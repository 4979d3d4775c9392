"""NATS restarts with an older store, as after a power loss: nobody waits for what is gone, and no
stream goes on in another way than it began.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.nats_server import NatsServer

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

# The same requests, other tokens: what the engine of a second worker makes of them.
OTHERWISE = tuple({"300": "1300", "1200": "2200"}.get(word, word) for word in SCRIPTED)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as running:
        yield running


def store_of(stack: RoleStack) -> Path:
    assert isinstance(stack.nats, NatsServer)
    return stack.nats.folder / "jetstream"


async def copy_store(stack: RoleStack, copy: Path) -> None:
    """Of a server that is killed for it, and started again."""
    stack.nats.kill()
    await asyncio.to_thread(shutil.copytree, store_of(stack), copy)
    stack.nats.start()


async def put_back(stack: RoleStack, copy: Path) -> None:
    stack.nats.kill()
    await asyncio.to_thread(shutil.rmtree, store_of(stack))
    await asyncio.to_thread(shutil.copytree, copy, store_of(stack))
    stack.nats.start()


def detok_of(stack: RoleStack) -> RoleProcess:
    return next(role for role in stack.roles if role.name.startswith("detok"))


@asynccontextmanager
async def supervised_detok(stack: RoleStack) -> AsyncIterator[None]:
    """Another one is started whenever the last one has ended, as a supervisor does."""

    async def supervise() -> None:
        while True:
            last = [role for role in stack.roles if role.name.startswith("detok")][-1]
            if not last.is_alive:
                stack.start_detok()
            await asyncio.sleep(0.1)

    supervising = asyncio.create_task(supervise())
    try:
        yield
    finally:
        supervising.cancel()


async def test_a_worker_that_has_seen_more_than_is_left_ends_and_a_new_one_serves(
    stack: RoleStack, tmp_path: Path
) -> None:
    worker = stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await run_stream(stack.url(), max_tokens=20, seed=1)
    await copy_store(stack, tmp_path / "earlier")
    await stack.wait_ready(1)
    await run_stream(stack.url(), max_tokens=100, seed=2)
    await put_back(stack, tmp_path / "earlier")
    async with supervised_detok(stack):  # it ends as the worker does, or has begun anew by itself
        await stack.wait_until(lambda: not worker.is_alive, 40)
        assert "NATS has lost records" in worker.log
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        again = await run_stream(stack.url(), max_tokens=20, seed=1)
    assert again.text == expected.text


async def begin(stack: RoleStack, num_tokens: int) -> tuple[Stream, asyncio.Task[None]]:
    stream = Stream()
    body = completion_body(max_tokens=1000, seed=5)
    reading = asyncio.create_task(stream.post(stack.url(), body, **{"X-Resume-Grace": "30"}))
    await stream.wait_for_tokens(num_tokens)
    return stream, reading


async def test_a_stream_whose_text_was_lost_ends_in_an_error_and_is_never_spliced(
    stack: RoleStack, tmp_path: Path
) -> None:
    """Its worker and its detokenizer die as well, so that nobody but its client knows the rest."""
    worker = stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    stream, reading = await begin(stack, 20)
    await copy_store(stack, tmp_path / "earlier")
    num_kept = stream.position
    await stream.wait_for_tokens(num_kept + 100)
    worker.kill()
    detok_of(stack).kill()
    shown = stream.text
    await put_back(stack, tmp_path / "earlier")
    stack.start_detok()
    stack.start_worker(*OTHERWISE)
    await asyncio.wait_for(reading, 60)
    assert stream.error is not None
    assert stream.error["code"] == "records_lost"
    assert not stream.is_done
    assert stream.text.startswith(shown)
    assert len(stream.text) < len(shown) + 100, "it went on with another text"


async def test_a_request_that_was_lost_is_told_of(stack: RoleStack, tmp_path: Path) -> None:
    """Its acceptance is younger than the store."""
    worker = stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    await copy_store(stack, tmp_path / "earlier")
    await stack.wait_ready(1)
    stream, reading = await begin(stack, 20)
    worker.kill()
    queued = Stream()
    waiting = asyncio.create_task(queued.post(stack.url(), completion_body(seed=6)))
    await stack.until_queued(2)
    detok_of(stack).kill()
    await put_back(stack, tmp_path / "earlier")
    stack.start_detok()
    for each, reader in ((stream, reading), (queued, waiting)):
        await asyncio.wait_for(reader, 60)
        assert each.error is not None
        assert each.error["code"] == "records_lost"
