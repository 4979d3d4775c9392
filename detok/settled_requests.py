"""Requests whose result is stored: their late frames still arrive."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MAX_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """What late frames are judged by."""

    epoch: int
    pool: str  # "" when nothing is known but that it is over
    was_ended: bool  # by an `end`: its writer may not know

    def is_stale(self, epoch: int) -> bool:
        """Whether an entry of this epoch shows a worker that runs in vain."""
        return self.pool != "" and (epoch != self.epoch or self.was_ended)


class SettledRequests:
    """The most recent ones."""

    def __init__(self) -> None:
        self._by_rid: OrderedDict[str, SettledRequest] = OrderedDict()

    def __contains__(self, rid: str) -> bool:
        return rid in self._by_rid

    def get(self, rid: str) -> SettledRequest | None:
        return self._by_rid.get(rid)

    def add(self, rid: str, settled: SettledRequest) -> None:
        self._by_rid[rid] = settled
        if len(self._by_rid) > _MAX_REMEMBERED:
            self._by_rid.popitem(last=False)

    def forget(self, rid: str) -> None:
        self._by_rid.pop(rid, None)
