"""The parameters of a run of the suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.chaos.flock import FlockPlan


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """What to run; `fault_names` are keys of FAULTS.

    With more clients than slots the rest wait in the queue.
    """

    fault_names: Sequence[str]
    seed: int
    num_disturbed: int
    num_clients: int = 64
    num_cases: int = 110
    max_tokens: int = 800
    kinds: Sequence[str] = ()  # of requests; all of them when empty
    num_mixed: int = 3  # faults at once, at the end of each round
    settle_s: tuple[float, float] = (0.5, 2.0)  # between two faults that come alone
    has_move: bool = False  # beside the faults the service moves to other streams
    flock: FlockPlan = field(default_factory=FlockPlan)
    stream_timeout_s: float = 60.0  # of silence: then it is lost
    command: str = ""

    @property
    def num_at_a_time(self) -> int:
        """Clients whose requests run while the others wait."""
        return min(self.num_clients, self.flock.num_slots)

    @property
    def queue_wait_s(self) -> float:
        """How long a request may wait for its turn before it counts as lost."""
        return self.stream_timeout_s * (self.num_clients // self.flock.num_slots)
