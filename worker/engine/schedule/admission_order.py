"""Which of the first waiting requests is tried first."""

from __future__ import annotations

from typing import Literal, TypeAlias

from worker.engine.request.req import Req
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.waiting_queue import WaitingQueue

SchedulePolicy: TypeAlias = Literal["fcfs", "lpm"]


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
