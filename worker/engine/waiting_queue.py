"""Requests that wait for admission."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from worker.engine.req import Req


class WaitingQueue:
    """First come, first served within a priority. A retracted request keeps its place."""

    def __init__(self) -> None:
        self._reqs: list[Req] = []  # sorted by queue_rank

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    @property
    def head(self) -> Req | None:
        return self._reqs[0] if self._reqs else None

    def push(self, req: Req) -> None:
        bisect.insort(self._reqs, req, key=lambda waiting: waiting.queue_rank)

    def pop(self) -> Req:
        return self._reqs.pop(0)

    def remove(self, req: Req) -> None:
        self._reqs.remove(req)
