"""The right to publish: a detokenizer's lease, and its tenure of one partition under it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Lease:
    """Valid until a moment of our monotonic clock, which no rival's clock can reach sooner.

    A rival counts from when it saw the last revision; we count from when we began to write it.
    """

    nonce: str
    revision: int = 0  # 0: not stored yet
    valid_until: float = float("-inf")

    @property
    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until

    def end(self) -> None:
        """Another has ended it, or we have."""
        self.valid_until = float("-inf")


@dataclass(slots=True, eq=False)
class Tenure:
    """A partition that was taken under a lease."""

    partition: int
    lease: Lease
    revision: int  # of the partition's record
    is_over: bool = False  # given back, or taken by another

    @property
    def is_valid(self) -> bool:
        return not self.is_over and self.lease.is_valid
