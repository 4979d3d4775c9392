"""What one request looked like from outside."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field


def _no_times() -> array[float]:
    return array("d")


@dataclass(slots=True)
class RequestRecord:
    """Times are of `time.perf_counter`; a request without `error` was answered to its end.

    Latencies count from `due_at`. In an open loop that is the moment which the arrival process
    drew, however late the request could be sent: else a slow server, which keeps requests from
    being sent, would hide its own delays.
    """

    due_at: float
    sent_at: float = 0.0  # the first attempt
    ended_at: float = 0.0
    status: int = 0
    error: str = ""  # a class of errors: "http 500", "timeout", "cut", ...
    message: str = ""  # what the server said of it
    arrivals: array[float] = field(default_factory=_no_times)  # of chunks that brought something
    finished_at: float = 0.0  # the last chunk that brought something, or why it ended
    num_prompt_tokens: int | None = None  # as `usage` has it
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_refused: int = 0  # answers 429 before the last one, which were waited out

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def lag_s(self) -> float:
        """How late it was sent."""
        return self.sent_at - self.due_at

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.due_at

    @property
    def ttft_s(self) -> float | None:
        """Until the first chunk that brought something."""
        return self.arrivals[0] - self.due_at if self.arrivals else None

    @property
    def num_tokens_made(self) -> int:
        """The tokens of the output: what `usage` says, else the number of chunks."""
        return len(self.arrivals) if self.num_output_tokens is None else self.num_output_tokens

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first one, also of tokens that show no text."""
        if not self.arrivals or self.num_tokens_made < 2:
            return None
        return (self.finished_at - self.arrivals[0]) / (self.num_tokens_made - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrivals)]
