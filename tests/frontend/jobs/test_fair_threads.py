"""Tenants take turns; what nobody waits for is not begun."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from frontend.jobs.fair_threads import FairThreads


async def begun(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """All of them stand in line."""
    for _ in tasks:
        await asyncio.sleep(0)


async def test_who_has_little_waits_for_one_piece_of_another() -> None:
    threads, order, gate = FairThreads(1, "test"), list[str](), threading.Event()
    first = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    tasks = [
        asyncio.create_task(threads.run(tenant, functools.partial(order.append, name)))
        for tenant, name in [("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b0"), ("c", "c0")]
    ]
    await begun([first, *tasks])
    gate.set()
    await asyncio.gather(first, *tasks)
    assert order == ["a0", "b0", "c0", "a1", "a2"]
    threads.close()


async def test_long_work_leaves_a_thread_to_short_work() -> None:
    threads, gate = FairThreads(2, "test"), threading.Event()
    long = [
        asyncio.create_task(threads.run(tenant, lambda: gate.wait(10), is_long=True))
        for tenant in ("a", "b", "a")
    ]
    await begun(long)
    async with asyncio.timeout(5):
        assert await threads.run("a", lambda: 7) == 7
    gate.set()
    assert all(await asyncio.gather(*long))
    threads.close()


async def test_a_turn_that_was_given_up_is_not_taken() -> None:
    threads, order, gate = FairThreads(1, "test"), list[str](), threading.Event()
    first = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    given_up = asyncio.create_task(threads.run("a", lambda: order.append("given up")))
    last = asyncio.create_task(threads.run("b", lambda: order.append("last")))
    await begun([first, given_up, last])
    given_up.cancel()
    gate.set()
    await last
    assert order == ["last"]
    threads.close()


async def test_a_thread_is_free_after_work_that_failed_or_was_left() -> None:
    threads, gate = FairThreads(1, "test"), threading.Event()
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 / 0)
    left = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    await begun([left])
    left.cancel()
    gate.set()
    assert await threads.run("b", lambda: 7) == 7
    threads.close()


async def test_what_waits_when_they_are_closed_is_cancelled() -> None:
    threads, gate = FairThreads(1, "test"), threading.Event()
    running = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    waiting = asyncio.create_task(threads.run("a", lambda: None))
    await begun([running, waiting])
    threads.close()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await running
