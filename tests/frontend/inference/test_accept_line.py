"""The line before the queue: few at a time, tenants in turn, as many as the queue has room for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from frontend.inference.admission import accept_line
from frontend.inference.admission.accept_line import MAX_ACTIVE, AcceptLine
from frontend.inference.admission.admission import Admission
from frontend.inference.admission.drain_rate import DrainRate
from frontend.inference.admission.queue_limits import QueueLimits
from frontend.jobs.job import Caller, Presence, Unseen
from frontend.metrics import FrontendMetrics
from frontend.tenants.ledger import TenantLedger
from frontend.tenants.tenant import Tenant
from shared.errors import DeadlineExceeded, QueueFull, RequestCancelled
from tests.eventually import eventually

T = TypeVar("T")
UNSEEN = Unseen()


@contextlib.asynccontextmanager
async def turn(
    line: AcceptLine, tenant: str, presence: Presence = UNSEEN, patience_s: float = float("inf")
) -> AsyncIterator[float]:
    waited_s = await line.wait(tenant, presence, patience_s)
    with line.turn():
        yield waited_s


async def enter(line: AcceptLine, tenant: str, order: list[str], gate: asyncio.Event) -> None:
    async with turn(line, tenant):
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
        await holder.enter_async_context(turn(line, "holder"))
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


class Hangs:
    """A client that goes away when it is told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def during(self, work: Awaitable[T]) -> T:
        working, gone = asyncio.ensure_future(work), asyncio.create_task(self.gone.wait())
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not working.done():
            raise RequestCancelled("The client is gone.")
        return working.result()


@pytest.mark.parametrize("error", [RequestCancelled, TimeoutError])
async def test_who_is_gone_or_has_no_time_left_stands_in_line_no_more(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept_line, "_UNWATCHED_S", 0.01)
    line, client = AcceptLine(max_active=1), Hangs()
    patience_s = 0.02 if error is TimeoutError else 60.0
    async with turn(line, "holder"):
        leaving = asyncio.create_task(turn(line, "a", client, patience_s).__aenter__())
        await eventually(lambda: line.num_waiting == 1)
        if error is RequestCancelled:
            client.gone.set()
        with pytest.raises(error):
            await leaving
        assert line.num_waiting == 0
    async with turn(line, "next") as waited_s:
        assert waited_s == 0


async def test_who_comes_is_told_how_long_the_line_takes() -> None:
    line, order = AcceptLine(max_active=1), list[str]()
    gate = asyncio.Event()
    async with turn(line, "holder"):
        tasks = [asyncio.create_task(enter(line, "a", order, gate)) for _ in range(30)]
        await eventually(lambda: line.num_waiting == 30)
        assert line.wait_s == float("inf")
    await eventually(lambda: line.num_waiting == 28, 3.0)  # turns are lent for half a second
    assert 5 < line.wait_s < 30
    gate.set()
    await asyncio.gather(*tasks)


class Queue:
    """One model, of whose queue so much is used."""

    def __init__(self, num_known: int) -> None:
        self.drain = DrainRate()
        self._num = num_known

    def num_known(self, pool: str, job_class: str) -> int:
        return self._num


def make_admission(num_queued: int, limit: int = 1000) -> Admission:
    watch: Any = Queue(num_queued)
    limits = QueueLimits(watch, {"interactive": limit}, list)
    streams: Any = SimpleNamespace(check=lambda: None)
    metrics = FrontendMetrics(CollectorRegistry()).acceptance
    return Admission(TenantLedger(), watch, limits, streams, metrics)


@pytest.mark.parametrize(
    ("num_queued", "tenants", "num_taken", "code"),
    [
        (900, ("",), 100, "overloaded"),
        (900, ("a",), 64, "overloaded"),  # with keys half of it, or what is always free
        (700, ("a",), 150, "overloaded"),
        (700, ("a", "b"), 200, "overloaded"),
        (1000, ("",), 64, "queue_full"),
    ],
)
async def test_so_many_stand_in_line_as_the_queue_has_room_for(
    num_queued: int,
    tenants: tuple[str, ...],
    num_taken: int,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accept_line, "_TURN_S", 60.0)  # whose turn comes is in line no more
    admission = make_admission(num_queued)
    async with AsyncExitStack() as held:
        for _ in range(MAX_ACTIVE):
            held.enter_context((await admission.turn(Caller()))[1])
        callers = [Caller(tenant=Tenant(name)) for name in tenants]
        waiting = [
            asyncio.create_task(admission.turn(caller))
            for caller, _ in zip(itertools.cycle(callers), range(400), strict=False)
        ]
        refused = [task for task in waiting if await failed(task)]
    assert len(waiting) - len(refused) == num_taken
    error = refused[0].exception()
    assert isinstance(error, QueueFull)
    assert (error.code, error.status_code) == (code, 429)
    assert error.retry_after_s == 120, "nothing has left so far"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def failed(task: asyncio.Task[Any]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


async def test_the_time_in_line_counts_and_is_bounded_by_the_deadline() -> None:
    admission = make_admission(0)
    caller = Caller(deadline_s=0.5, queue_timeout_s=5.0)
    async with AsyncExitStack() as held:
        for _ in range(MAX_ACTIVE):
            held.enter_context((await admission.turn(Caller()))[1])
        for impatient, code in (
            (Caller(deadline_s=0.02), "deadline_exceeded"),
            (Caller(queue_timeout_s=0.02), "queue_timeout"),
        ):
            with pytest.raises(DeadlineExceeded) as caught:
                await admission.turn(impatient)
            assert caught.value.code == code
        waiting = asyncio.create_task(admission.turn(caller))
        await asyncio.sleep(0.1)
    left, _ = await waiting
    assert left.deadline_s <= 0.4
    assert left.queue_timeout_s <= 4.9
