"""A line in which tenants stand one behind the other, whatever each of them waits for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Any, Generic, Protocol, TypeVar


class Turn(Protocol):
    """What somebody waits for, as long as `done` is not."""

    @property
    def done(self) -> asyncio.Future[Any]: ...


Waiting = TypeVar("Waiting", bound=Turn)


class TenantLine(Generic[Waiting]):
    """Tenants one behind the other, each with its turns."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def add(self, tenant: str, turn: Waiting) -> None:
        self._turns.setdefault(tenant, deque()).append(turn)

    def num_of(self, tenant: str) -> int:
        """Its turns, with those that it has given up since it was called last."""
        return len(self._turns.get(tenant, ()))

    def next(self) -> Waiting | None:
        """The first one's turn, who then stands behind all others; None when there is none."""
        while self._turns:
            tenant, turns = self._turns.popitem(last=False)
            while turns and turns[0].done.done():  # nobody waits for it any more
                turns.popleft()
            if turns:
                turn = turns.popleft()
                if turns:
                    self._turns[tenant] = turns
                return turn
        return None

    def clear(self) -> None:
        for turns in self._turns.values():
            for turn in turns:
                turn.done.cancel()
        self._turns.clear()
