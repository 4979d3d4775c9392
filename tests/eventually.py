"""Until what others do has happened: who waits for it looks again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# Longer than a busy machine takes, shorter than what is done again unasked (20 s and more).
PATIENCE_S = 19.0
_FIRST_PAUSE_S = 0.005
_GROWTH = 1.2
_LONGEST_PAUSE_S = 0.05
Found = TypeVar("Found")


class Looks:
    """`async for _ in Looks(20):`, or `for`: until the loop is left, which has to be in time."""

    def __init__(
        self,
        timeout_s: float = PATIENCE_S,
        why: str | Callable[[], object] = "it did not happen in time",
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        """`why` it cannot go on is said at the end."""
        self._deadline = time.monotonic() + timeout_s
        self._why = why
        self._longest_pause_s = longest_pause_s
        self._pause_s = 0.0

    def __iter__(self) -> Looks:
        return self

    def __aiter__(self) -> Looks:
        return self

    def __next__(self) -> None:
        if pause_s := self._next_pause_s():
            time.sleep(pause_s)

    async def __anext__(self) -> None:
        if pause_s := self._next_pause_s():
            await asyncio.sleep(pause_s)

    @property
    def error(self) -> AssertionError:
        return AssertionError(self._why() if callable(self._why) else self._why)

    def _next_pause_s(self) -> float:
        """Before the next look; none before the first. What comes at once is seen at once."""
        pause_s = self._pause_s
        if pause_s and time.monotonic() > self._deadline:
            raise self.error
        longer_s = max(_FIRST_PAUSE_S, _GROWTH * pause_s)
        self._pause_s = min(longer_s, self._longest_pause_s)
        return pause_s


async def eventually(condition: Callable[[], Found | None], timeout_s: float = PATIENCE_S) -> Found:
    """The first of what the condition finds that is true."""
    async for _ in (looks := Looks(timeout_s)):
        if found := condition():
            return found
    raise looks.error


async def eventually_async(
    condition: Callable[[], Awaitable[Found | None]], timeout_s: float = PATIENCE_S
) -> Found:
    async for _ in (looks := Looks(timeout_s)):
        if found := await condition():
            return found
    raise looks.error


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    for _ in Looks(timeout_s):
        if condition():
            return
