"""Tasks that each care for one request: one that fails ends no other."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import ConnectionClosedError

from shared.errors import BrokerUnavailable
from worker.requests.request_tasks import RequestTasks


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), ConnectionClosedError()])
async def test_what_fails_for_one_request_does_not_end_another(error: Exception) -> None:
    tasks, may_end, has_ended = RequestTasks(), asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await may_end.wait()
        has_ended.set()

    async with tasks.opened():
        tasks.spawn(other())
        tasks.spawn(fail(error))
        await asyncio.sleep(0)
        may_end.set()
    assert has_ended.is_set()


async def test_a_mistake_of_ours_ends_them_all() -> None:
    tasks, has_ended = RequestTasks(), asyncio.Event()

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    async def run() -> None:
        async with tasks.opened():
            tasks.spawn(other())
            await asyncio.sleep(0)
            tasks.spawn(fail(KeyError("x")))

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert isinstance(caught.value.exceptions[0], KeyError)
    assert has_ended.is_set()


async def test_they_are_cancelled_with_whoever_has_opened_them() -> None:
    tasks, has_begun, was_cancelled = RequestTasks(), asyncio.Event(), asyncio.Event()

    async def other() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    async def run() -> None:
        async with tasks.opened():
            tasks.spawn(other())

    running = asyncio.create_task(run())
    await has_begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert was_cancelled.is_set()
