"""What the run of a request takes: moments by this process's clock, and shares of engine steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from shared.protocol.finish import NO_COST, Cost, RunFacts

_REPORT_S = 1.0  # of what a killed worker has not logged, nobody knows more than how long it was


@dataclass(slots=True)
class RunClock:
    """The clock of one run in the engine, which reports by its own clock how long the run waited
    there.
    """

    added_at: float
    queue_s: float = 0.0
    has_begun: bool = False
    num_cached_tokens: int = 0  # of its prompt, when it began
    first_token_at: float = 0.0  # 0: none yet
    finished_at: float = 0.0

    def begin(self, queue_s: float, num_cached_tokens: int = 0) -> None:
        """The engine has taken it from its queue; of several times the first counts."""
        if not self.has_begun:
            self.has_begun, self.queue_s = True, queue_s
            self.num_cached_tokens = num_cached_tokens

    def note_output(self, now: float, *, is_last: bool) -> None:
        if not self.first_token_at:
            self.first_token_at = now
        if is_last:
            self.finished_at = now

    def facts(self, workers: tuple[str, ...]) -> RunFacts:
        """The facts of a run that is over."""
        return RunFacts(
            workers=workers,
            queue_s=_rounded(self.queue_s),
            prefill_s=_rounded(self.first_token_at - self.added_at - self.queue_s),
            decode_s=_rounded(self.finished_at - self.first_token_at),
        )


def _rounded(seconds: float) -> float:
    """To 10 us; two clocks may disagree by more than a short interval has."""
    return max(0.0, round(seconds, 5))


@dataclass(slots=True)
class RequestCost:
    """What a request that is held here has taken, on top of what the log says of it: from its
    delivery on, since an engine may run it before its claim is stored.
    """

    before: Cost = NO_COST  # what others had logged when it was claimed here
    engine_s: float = 0.0
    num_computed: int = 0
    num_drafted: int = 0
    repeated_s: float = 0.0  # of `engine_s`
    num_repeated: int = 0  # of `num_computed`
    claimed_at: float = field(default_factory=time.monotonic)
    _reported_at: float = 0.0

    def claimed(self, before: Cost) -> None:
        """Its claim is stored, behind so much."""
        self.before = before
        self.claimed_at = time.monotonic()

    def note_share(self, num_tokens: int, token_s: float, *, num_drafted: int = 0) -> None:
        """Its part of a step that was no single token."""
        self.engine_s += num_tokens * token_s
        self.num_drafted += num_drafted
        if not num_drafted:
            self.num_computed += num_tokens

    def repeat(self) -> None:
        """All that it has taken here so far had been computed before, or was for nothing."""
        self.repeated_s, self.num_repeated = self.engine_s, self.num_computed

    def is_due(self, now: float) -> bool:
        """Whether it should be logged again."""
        return now - self._reported_at >= _REPORT_S

    def report(self, now: float) -> Cost:
        """The sum up to now."""
        self._reported_at = now
        before = self.before
        return Cost(
            engine_s=_to_microseconds(before.engine_s + self.engine_s),
            num_computed=before.num_computed + self.num_computed,
            num_drafted=before.num_drafted + self.num_drafted,
            repeated_s=_to_microseconds(before.repeated_s + self.repeated_s),
            num_repeated=before.num_repeated + self.num_repeated,
            queue_s=before.queue_s,
            held_s=_to_microseconds(before.held_s + now - self.claimed_at),
            unmeasured_s=before.unmeasured_s,
            num_handovers=before.num_handovers,
        )


def _to_microseconds(seconds: float) -> float:
    return round(seconds, 6)
