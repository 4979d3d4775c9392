"""Looks whether the streams of a role are left for others."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TypeVar

from shared.cluster import Cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.event_wait import wait_event
from shared.service.move import Move, MoveRecords, is_queue_closed
from shared.telemetry.log import get_logger

_LOOK_S = 5.0  # for what happens once in months
_LOOK_AT_QUEUE_S = 1.0  # an announced move closes it soon

Config = TypeVar("Config", bound=ClusterConfig)

log = get_logger(__name__)


class MoveWatch:
    """Of one side of a move, or of a service that does not move. Each event is set once."""

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
            if await wait_event(self._soon, self._pause_s()):
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
