"""Who has nobody to tell tells nothing; who comes hears what is known by then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from nats.aio.msg import Msg

from shared.protocol.codec import decode, encode
from shared.protocol.notices import PrefixNotice
from shared.protocol.prefix_chain import BLOCK_TOKENS, PrefixChain
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.subjects import Subjects
from tests.eventually import eventually
from tests.time_to_err import time_to_err
from tests.worker.checkpoints import make_weights
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.affinity.prefix_reporter import PrefixReporter


class Wire:
    """All workers hear what one of them publishes, themselves included."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Msg], Awaitable[None]]] = []
        self.notices: list[PrefixNotice] = []
        self.alive: list[str] = []

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> Any:
        self.listeners.append(cb)
        return SimpleNamespace(unsubscribe=self._nothing)

    async def publish(self, subject: str, data: bytes) -> None:
        self.notices.append(decode(PrefixNotice, data))
        for listener in list(self.listeners):
            await listener(Msg(cast(Any, None), subject, "", data))

    async def _nothing(self) -> None: ...

    async def entries(self) -> list[Any]:
        """The worker cards."""
        return [
            SimpleNamespace(value=encode(WorkerCard(name, "pool", "m", "r", WorkerState.READY)))
            for name in self.alive
        ]


class Worker:
    def __init__(self, wire: Wire, name: str) -> None:
        self.prefixes = PoolPrefixes(make_weights("rev"))
        self.prefixes.open(64 * BLOCK_TOKENS)
        cluster = SimpleNamespace(
            nc=wire, malformed=None, subjects=Subjects(), bucket=lambda _: wire
        )
        self.reporter = PrefixReporter(cast(Any, cluster), "pool", name, self.prefixes)

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.reporter.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_prefixes_are_told_once_there_is_another_worker() -> None:
    wire, chain = Wire(), PrefixChain(b"n", bytes(4 * BLOCK_TOKENS * 3))
    first, second = Worker(wire, "first"), Worker(wire, "second")
    wire.alive = ["first"]
    async with first.running():
        first.prefixes.note(chain)
        await time_to_err(0.1)
        assert [notice.hashes for notice in wire.notices] == [b""]
        wire.alive = ["first", "second"]
        async with second.running():
            await eventually(lambda: second.prefixes.best_other(chain) == ("first", 3))
            second.prefixes.note(chain)
            await eventually(lambda: first.prefixes.best_other(chain) == ("second", 3))
        wire.alive = ["first"]
        await first.reporter.look()
        num_emitted = len(wire.notices)
        first.prefixes.note(PrefixChain(b"m", bytes(4 * BLOCK_TOKENS)))
        await time_to_err(0.1)
        assert len(wire.notices) == num_emitted


async def test_what_waits_for_another_worker_has_a_bound() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    prefixes.open(64 * BLOCK_TOKENS)
    for i in range(1000):
        prefixes.note(PrefixChain(b"%d" % i, bytes(4 * BLOCK_TOKENS * 20)))
    hashes, _ = await prefixes.next_unpublished()
    assert len(hashes) == 16_384
    last = PrefixChain(b"999", bytes(4 * BLOCK_TOKENS * 20))
    assert hashes[-20:] == list(last.hashes)
