"""When things are to be looked at next: what is not due costs nothing, however many there are."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

TICK_S = 0.2

T = TypeVar("T")


class Alarms(Generic[T]):
    """At most one time for each thing, kept in ticks: it is due less than a tick later."""

    def __init__(self) -> None:
        self._ticks: dict[int, list[T]] = {}
        self._order: list[int] = []  # a heap of those ticks
        self._tick_of: dict[T, int] = {}

    def set(self, thing: T, at: float) -> None:
        """Replaces what was set before. inf: never."""
        if at == math.inf:
            self.drop(thing)
            return
        tick = math.ceil(max(0.0, at) / TICK_S)
        if self._tick_of.get(thing) == tick:
            return
        self._tick_of[thing] = tick
        things = self._ticks.get(tick)
        if things is None:
            things = self._ticks[tick] = []
            heapq.heappush(self._order, tick)
        things.append(thing)

    def drop(self, thing: T) -> None:
        self._tick_of.pop(thing, None)

    def take_due(self, now: float) -> list[T]:
        """Those whose time has come; they have none any more."""
        due = []
        while self._order and self._order[0] * TICK_S <= now:
            tick = heapq.heappop(self._order)
            for thing in self._ticks.pop(tick):
                if self._tick_of.get(thing) == tick:
                    del self._tick_of[thing]
                    due.append(thing)
        return due
