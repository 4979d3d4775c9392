"""Whether the streams of a role are left for others, and the others meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from shared.cluster import Cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.event_wait import beat_s, wait_event
from shared.service.move import Move, MoveRecords, is_queue_closed
from shared.telemetry.log import get_logger

_LOOK_S = 10.0  # for what happens once in months
_LOOK_AT_QUEUE_S = 1.0  # an announced move closes it soon
_RETRY_S = 1.0

Config = TypeVar("Config", bound=ClusterConfig)
Side = TypeVar("Side")

log = get_logger(__name__)


class MoveWatch:
    """Watches one side of a move, or a service that does not move. Each event is set once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._records = MoveRecords(cluster.js, cluster.subjects.prefix)
        self.move: Move | None = None  # away from here
        self.announced = asyncio.Event()
        self.closed = asyncio.Event()  # no request comes into this queue any more
        self.over = asyncio.Event()  # these streams are about to be deleted
        self._soon = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled, or until it is over."""
        while not self.over.is_set():
            await self.look()
            if await wait_event(self._soon, beat_s(self._pause_s())):
                self._soon.clear()

    def newer_config(self, config: Config) -> Config:
        """The same for the streams that these are left for, which must have been announced."""
        assert self.move is not None
        return dataclasses.replace(config, prefix=self.move.new, num_partitions=None)

    def look_soon(self) -> None:
        """Something was refused that only a move explains."""
        self._soon.set()

    def _pause_s(self) -> float:
        is_closing = self.announced.is_set() and not self.closed.is_set()
        return _LOOK_AT_QUEUE_S if is_closing else _LOOK_S

    async def look(self) -> None:
        try:
            await self._look()
        except (BrokerError, ConfigError) as exc:
            log.debug("move_not_seen", error=str(exc))

    async def _look(self) -> None:
        record = (await self._records.moved_to()).record
        if record is None:
            return
        move = Move(self._records.prefix, record.prefix, record.is_over)
        if move != self.move:
            log.info("service_moves", old=move.old, new=move.new, is_over=move.is_over)
            self.move = move
        self.announced.set()
        if move.is_over:
            self.closed.set()
            self.over.set()
        elif not self.closed.is_set() and await is_queue_closed(
            self._cluster.js, self._cluster.subjects
        ):
            log.info("old_queue_closed", old=move.old, new=move.new)
            self.closed.set()


@asynccontextmanager
async def newer_side(
    move: MoveWatch,
    config: Config,
    open_side: Callable[[Config], AbstractAsyncContextManager[Side]],
) -> AsyncIterator[Side]:
    """Wait until a move is announced, and enter what `open_side` makes of the configuration there.

    However often it takes: a BrokerError or ConfigError is logged, and it is tried again.
    """
    await move.announced.wait()
    async with AsyncExitStack() as exits:
        while True:
            try:
                side = await exits.enter_async_context(open_side(move.newer_config(config)))
            except (BrokerError, ConfigError) as exc:
                log.error("newer_streams_not_opened", error=str(exc))
                await asyncio.sleep(_RETRY_S)
            else:
                break
        yield side
