"""How long to wait before a process that died is started again."""

from __future__ import annotations

_FIRST_S = 0.2
_LONGEST_S = 5.0
_LIVED_LONG_S = 10.0  # a process that ran this long had started well: begin anew


class Backoff:
    """0.2 s after the first death, doubled after each further one in a row, up to 5 s."""

    def __init__(self) -> None:
        self.num_deaths_in_a_row = 0

    def next_delay_s(self, lived_s: float) -> float:
        if lived_s >= _LIVED_LONG_S:
            self.num_deaths_in_a_row = 0
        self.num_deaths_in_a_row += 1
        return float(min(_LONGEST_S, _FIRST_S * 2 ** (self.num_deaths_in_a_row - 1)))
