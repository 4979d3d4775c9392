"""Requests that wait for admission, and which of the first ones is tried first."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from typing import Literal, TypeAlias

from worker.engine.request.req import Req
from worker.engine.schedule.kv_ledger import KVLedger

WINDOW = 64  # so many are looked at beside the first
DEFAULT_AGING_S = 5.0

# When it would have come with priority 0, its order of arrival, and itself. Arrivals differ: the
# requests themselves are never compared.
_Entry: TypeAlias = tuple[float, int, Req]

SchedulePolicy: TypeAlias = Literal["fcfs", "lpm"]


class WaitingQueue:
    """Requests by priority and age: each `aging_s` of waiting counts as one step of priority.

    So the order of two requests never changes while they wait, and nobody waits for ever. A
    retracted request gets its old place again. The first WINDOW entries are in order; the others in
    a heap, where those that have left stay until they come up or are too many. All operations take
    logarithmic time.
    """

    def __init__(self, aging_s: float = DEFAULT_AGING_S) -> None:
        self._aging_s = aging_s
        self._entries: dict[int, _Entry] = {}  # by run_id
        self._front: list[_Entry] = []  # the first WINDOW, sorted
        self._rest: list[_Entry] = []  # heap; some may have left
        self.num_tokens = 0  # of all that wait

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Req]:
        return (req for _, _, req in self._entries.values())

    @property
    def window(self) -> list[Req]:
        """The first WINDOW of them, in order."""
        return [req for _, _, req in self._front]

    def due_s(self, req: Req) -> float:
        """The lowest runs first."""
        return req.arrived_at_s + req.options.priority * self._aging_s

    def push(self, req: Req) -> None:
        entry = (self.due_s(req), req.arrival, req)
        self._entries[req.run_id] = entry
        self.num_tokens += req.num_tokens
        if len(self._front) < WINDOW:
            bisect.insort(self._front, entry)
        elif entry < self._front[-1]:
            bisect.insort(self._front, entry)
            heapq.heappush(self._rest, self._front.pop())
        else:
            heapq.heappush(self._rest, entry)

    def remove(self, req: Req) -> None:
        entry = self._entries.pop(req.run_id)
        self.num_tokens -= req.num_tokens
        if entry <= self._front[-1]:
            del self._front[bisect.bisect_left(self._front, entry)]
            self._refill()
        elif len(self._rest) > 2 * len(self._entries) + WINDOW:
            self._rest = [each for each in self._rest if self._is_waiting(each)]
            heapq.heapify(self._rest)

    def check_integrity(self) -> None:
        """Raises RuntimeError when the parts do not agree."""
        rest = [entry for entry in self._rest if self._is_waiting(entry)]
        if sorted([*self._front, *rest]) != sorted(self._entries.values()):
            raise RuntimeError("a waiting request is lost, or twice in the queue")
        if len(self._front) != min(WINDOW, len(self._entries)):
            raise RuntimeError(f"{len(self._front)} of {len(self._entries)} are in the window")
        if self._front != sorted(self._front) or (rest and min(rest) < self._front[-1]):
            raise RuntimeError("the queue is out of order")
        if self.num_tokens != sum(req.num_tokens for req in self):
            raise RuntimeError(f"{self.num_tokens} waiting tokens are counted wrongly")

    def _refill(self) -> None:
        while self._rest:
            entry = heapq.heappop(self._rest)
            if self._is_waiting(entry):
                self._front.append(entry)
                return

    def _is_waiting(self, entry: _Entry) -> bool:
        return self._entries.get(entry[2].run_id) is entry


class AdmissionOrder:
    """First come, first served; or, among those of about the same age, the longest cached prefix.

    "About the same" is within one step of aging: so nobody is overtaken for longer than that.
    """

    def __init__(self, policy: SchedulePolicy, aging_s: float, ledger: KVLedger) -> None:
        self._policy = policy
        self._aging_s = aging_s
        self._ledger = ledger

    def candidates(self, waiting: WaitingQueue) -> list[Req]:
        """The queue's window, best first."""
        window = waiting.window
        if self._policy == "fcfs" or len(window) < 2:
            return window
        return sorted(
            window,
            key=lambda req: (
                waiting.due_s(req) // self._aging_s,
                -len(self._ledger.match(req).pages),
            ),
        )
