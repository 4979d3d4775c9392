"""The line before the queue: few at a time, tenants in turn; bursts wait, overload is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import pytest

from frontend.inference.admission.accept_line import AcceptLine, OverloadWatch
from shared.errors import Overloaded
from tests.worker.io_stage import eventually

LOOK_S = 0.1


class Load:
    """So many requests come and leave a second, in looks of a tenth of one."""

    def __init__(self) -> None:
        self.watch = OverloadWatch()
        self._now = 0.0
        self._num_arrived = self._num_left = 0

    def go_on(
        self, seconds: float, arrive_per_s: float, leave_per_s: float, lag_s: float = 0.0
    ) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self._now += LOOK_S
            self._num_arrived += round(arrive_per_s * LOOK_S)
            self._num_left = min(self._num_arrived, self._num_left + round(leave_per_s * LOOK_S))
            waiting = self._num_arrived - self._num_left
            self.watch.look(self._now, self._num_arrived, self._num_left, waiting, lag_s)


def test_a_burst_is_no_overload_however_long_it_takes_to_serve() -> None:
    load = Load()
    load.go_on(1.0, 100, 300)
    load.go_on(0.2, 20_000, 300)
    assert not load.watch.is_overloaded
    load.go_on(15.0, 20, 300)
    assert not load.watch.is_overloaded


def test_more_than_can_be_served_is_overload_within_a_second_and_ends_with_the_line() -> None:
    load = Load()
    load.go_on(1.0, 100, 300)
    load.go_on(2.0, 3000, 300)
    assert load.watch.is_overloaded
    assert 64 <= load.watch.room <= 150  # what leaves in 0.4 s
    load.go_on(30.0, 0, 300)
    assert not load.watch.is_overloaded


def test_a_loop_that_comes_late_hides_the_line() -> None:
    load = Load()
    load.go_on(1.0, 400, 300, lag_s=0.05)
    assert not load.watch.is_overloaded
    load.go_on(1.0, 400, 300, lag_s=0.4)
    assert load.watch.is_overloaded


async def enter(line: AcceptLine, tenant: str, order: list[str], gate: asyncio.Event) -> None:
    async with line.turn(tenant):
        order.append(tenant)
        await gate.wait()


async def test_tenants_take_turns() -> None:
    line, order = AcceptLine(max_active=1), list[str]()
    gates = [asyncio.Event() for _ in range(7)]
    names = ["first", "a", "a", "a", "a", "b", "c"]
    tasks = []
    for name, gate in zip(names, gates, strict=True):
        tasks.append(asyncio.create_task(enter(line, name, order, gate)))
        await asyncio.sleep(0)
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "a", "b", "c", "a", "a", "a"]


async def test_a_turn_is_lent_for_half_a_second() -> None:
    """Who waits for an image holds up nobody."""
    line, order = AcceptLine(max_active=1), list[str]()
    forever, gate = asyncio.Event(), asyncio.Event()
    gate.set()
    slow = asyncio.create_task(enter(line, "slow", order, forever))
    await asyncio.sleep(0)
    async with asyncio.timeout(2.0):
        await enter(line, "quick", order, gate)
    assert order == ["slow", "quick"]
    slow.cancel()
    await asyncio.wait([slow])
    async with asyncio.timeout(0.3):  # its turn was given back once
        await enter(line, "next", order, gate)


@pytest.mark.parametrize("is_called", [False, True])
async def test_who_leaves_gives_the_turn_away(is_called: bool) -> None:
    line, order = AcceptLine(max_active=1), list[str]()
    gate = asyncio.Event()
    gate.set()
    async with contextlib.AsyncExitStack() as holder:
        await holder.enter_async_context(line.turn("holder"))
        leaver = asyncio.create_task(enter(line, "leaver", order, gate))
        last = asyncio.create_task(enter(line, "last", order, gate))
        await asyncio.sleep(0)
        if is_called:  # in the same turn of the loop in which it is cancelled
            await holder.aclose()
        leaver.cancel()
    async with asyncio.timeout(0.3):
        await asyncio.wait([leaver])
        await last
    assert order == ["last"]


async def test_under_overload_who_waits_too_long_is_told_so_and_who_comes_is_refused() -> None:
    line, order = AcceptLine(max_active=1), list[str]()
    gate = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    async with asyncio.timeout(10):
        while line.overload() is None:  # two leave in a second, twenty come
            tasks += [asyncio.create_task(enter(line, "a", order, gate)) for _ in range(40)]
            await asyncio.sleep(LOOK_S)
    with pytest.raises(Overloaded, match="stand in line") as caught:
        async with line.turn("b"):
            pass
    assert (caught.value.status_code, caught.value.retry_after_s) == (429, 1)
    await eventually(lambda: num_refused(tasks) >= 40, 2.0)
    gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {type(None), Overloaded}
    await eventually(lambda: line.overload() is None, 2.0)


def num_refused(tasks: Iterable[asyncio.Task[None]]) -> int:
    return sum(task.done() and isinstance(task.exception(), Overloaded) for task in tasks)
