"""Bodies that take long are read one at a time, and leave the loop as long to others."""

from __future__ import annotations

import asyncio
import contextlib
import time

from frontend.jobs.body_intake import BodyLine

READING_S = 0.02


async def read(line: BodyLine, tenant: str, told: list[str], name: str = "") -> None:
    await line.turn(tenant)
    told.append(name or tenant)
    until = time.perf_counter() + READING_S
    while time.perf_counter() < until:  # as who decodes: the loop stands still
        pass


async def test_tenants_take_turns() -> None:
    line, told = BodyLine(), list[str]()
    async with asyncio.TaskGroup() as tasks:
        for tenant, name in [("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b0"), ("c", "c0")]:
            tasks.create_task(read(line, tenant, told, name))
    assert told == ["a0", "a1", "b0", "c0", "a2"]


async def test_half_of_the_loop_is_left_to_others() -> None:
    line, told = BodyLine(), list[str]()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(read(line, "a", told))
        began_at = time.perf_counter()
    assert len(told) == 5
    assert time.perf_counter() - began_at >= (5 + 4) * READING_S


async def test_nobody_waits_behind_those_who_have_left() -> None:
    line, told = BodyLine(), list[str]()
    await line.turn("a")
    waiting = [asyncio.create_task(read(line, "a", told)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    last = asyncio.create_task(read(line, "b", told))
    await waiting[1]
    waiting[2].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*waiting)
    async with asyncio.timeout(5):
        await last
        await line.turn("a")


async def test_a_turn_is_not_lost_with_who_leaves_as_it_comes() -> None:
    line, told = BodyLine(), list[str]()
    await line.turn("a")
    leaving = asyncio.create_task(read(line, "a", told))
    await asyncio.sleep(0)
    line._line.next().done.set_result(None)  # type: ignore[union-attr]  # called, as of now
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(5):
        await line.turn("b")
