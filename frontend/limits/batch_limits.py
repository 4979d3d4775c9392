"""What a frontend allows the batches that it drives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Of one frontend."""

    max_lines: int
    max_line_bytes: int
    max_in_flight: int
    deadline_s: float  # of one line, waiting and running
