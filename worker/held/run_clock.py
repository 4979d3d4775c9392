"""When the run of a request came, and when its first token: readings of this process's clock."""

from __future__ import annotations

from dataclasses import dataclass

from shared.protocol.finish import RunFacts


@dataclass(slots=True)
class RunClock:
    """Of one run in the engine, which tells by its own clock how long the run waited there."""

    added_at: float
    queue_s: float = 0.0
    has_begun: bool = False
    first_token_at: float = 0.0  # 0: none yet
    finished_at: float = 0.0

    def begin(self, queue_s: float) -> None:
        """The engine has taken it from its queue; of several times the first counts."""
        if not self.has_begun:
            self.has_begun, self.queue_s = True, queue_s

    def note_output(self, now: float, *, is_last: bool) -> None:
        if not self.first_token_at:
            self.first_token_at = now
        if is_last:
            self.finished_at = now

    def facts(self, workers: tuple[str, ...]) -> RunFacts:
        """Of a run that is over."""
        return RunFacts(
            workers=workers,
            queue_s=_rounded(self.queue_s),
            prefill_s=_rounded(self.first_token_at - self.added_at - self.queue_s),
            decode_s=_rounded(self.finished_at - self.first_token_at),
        )


def _rounded(seconds: float) -> float:
    """To 10 us; two clocks may disagree by more than a short interval has."""
    return max(0.0, round(seconds, 5))
