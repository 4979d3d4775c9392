"""One step as the scheduler plans it."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.req import Req


@dataclass(frozen=True, slots=True)
class ScheduledReq:
    """Tokens [start, end) of one request go through the model."""

    req: Req
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def has_sample(self) -> bool:
        """Its last known token is among them: the model's answer is a new one."""
        return self.end == self.req.num_tokens


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The requests of one step: those that decode first, then prefill chunks."""

    entries: list[ScheduledReq]
    fresh_pages: list[int]  # first written in this step: to be wiped before

    @property
    def num_tokens(self) -> int:
        return sum(entry.num_tokens for entry in self.entries)
