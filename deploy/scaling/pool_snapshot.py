"""What is seen of a pool at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The queue, the workers, and what they have done so far.

    The counts of what arrived and of what was done begin anywhere and only grow.
    """

    at: float  # seconds of any clock that only goes forward
    num_waiting: int  # requests that no worker has
    num_running: int  # requests that a worker has
    oldest_wait_s: float  # of the requests that wait; 0: none does
    num_arrived: int
    num_tokens: int  # prompt and output tokens that workers have worked off
    num_finished: int  # requests that workers have finished
    num_finished_tokens: int  # prompt and output tokens of these
    num_ready: int  # workers that take requests
    num_starting: int  # workers that will
    num_others: int  # of both, those that are not ours to start or stop
    max_running: int  # requests that a worker may run at once
    start_s: float  # time that the last workers took to become ready

    @property
    def num_workers(self) -> int:
        """Those that are paid for and stay."""
        return self.num_ready + self.num_starting

    @property
    def num_requests(self) -> int:
        return self.num_waiting + self.num_running
