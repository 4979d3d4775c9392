"""Puts workers to sleep and wakes them, and tells when they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from shared.admin.control import ControlReply, Sleep, WakeUp
from shared.admin.control_plane import ControlPlane, Target
from shared.errors import NotFound
from shared.protocol.role_cards import WorkerCard, WorkerState

_POLL_S = 0.1
_ORDER_TIMEOUT_S = 10.0
_HAND_OVER_S = 60.0
_LOAD_TIMEOUT_S = 1800.0


class SleepOrders:
    """Orders to all workers that are meant, at once. Who is already so is no error."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def sleep(self, target: Target, sleep: Sleep) -> list[ControlReply]:
        """When all have given memory back, or said why not. Raises NotFound or BrokerError."""
        timeout_s = sleep.finish_timeout_s + _HAND_OVER_S
        return await self._send(
            target, sleep, lambda card: card.sleep_level == sleep.level, timeout_s
        )

    async def wake_up(self, target: Target) -> list[ControlReply]:
        """When all have loaded, or said why not. Raises NotFound or BrokerError."""
        return await self._send(target, WakeUp(), _is_awake, _LOAD_TIMEOUT_S)

    async def are_asleep(self, target: Target) -> bool:
        """False as soon as one is awake. Raises NotFound where none lives, or BrokerError."""
        cards = await self._plane.workers(target)
        if not cards:
            raise NotFound("No worker lives.")
        return all(card.sleep_level for card in cards)

    async def _send(
        self,
        target: Target,
        order: Sleep | WakeUp,
        is_done: Callable[[WorkerCard], bool],
        timeout_s: float,
    ) -> list[ControlReply]:
        replies = await self._plane.send(target, order, _ORDER_TIMEOUT_S)
        deadline = time.monotonic() + timeout_s
        waits = [self._outcome(reply, is_done, deadline) for reply in replies]
        return await asyncio.gather(*waits)

    async def _outcome(
        self, reply: ControlReply, is_done: Callable[[WorkerCard], bool], deadline: float
    ) -> ControlReply:
        while reply.ok and time.monotonic() < deadline:
            cards = await self._cards(reply.worker)
            if not cards:
                return _failed(reply, "it is gone")
            if cards[0].num_updates >= reply.num_updates:
                if cards[0].update_error:
                    return _failed(reply, cards[0].update_error)
                if is_done(cards[0]):
                    return msgspec.structs.replace(reply, num_updates=0)
            await asyncio.sleep(_POLL_S)
        return _failed(reply, "it did not end in time") if reply.ok else reply

    async def _cards(self, worker: str) -> Sequence[WorkerCard]:
        """Its own, if it lives. Raises BrokerError."""
        try:
            return await self._plane.workers(Target(None, (worker,)))
        except NotFound:
            return ()


def _is_awake(card: WorkerCard) -> bool:
    return not card.sleep_level and card.state is not WorkerState.LOADING


def _failed(reply: ControlReply, why: str) -> ControlReply:
    return ControlReply(reply.worker, False, why)
