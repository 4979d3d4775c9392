"""How long to wait before a process that died is started again."""

from __future__ import annotations

_FIRST_S = 0.2
_LONGEST_S = 5.0
_LONGEST_OF_A_START_S = 60.0  # a start may take all cores for minutes
_SERVED_LONG_S = 10.0  # a process that served so long had started well: begin anew


class Backoff:
    """0.2 s after the first death, doubled after each further one in a row, up to 5 s; up to a
    minute for a process that dies before it serves, however long it takes to die.
    """

    def __init__(self) -> None:
        self.num_deaths_in_a_row = 0
        self.num_failed_starts = 0  # in a row

    def next_delay_s(self, served_s: float | None) -> float:
        """`served_s`: since when it had been ready; None when it never was."""
        if served_s is not None and served_s >= _SERVED_LONG_S:
            self.num_deaths_in_a_row = 0
        self.num_deaths_in_a_row += 1
        self.num_failed_starts = self.num_failed_starts + 1 if served_s is None else 0
        longest_s = _LONGEST_OF_A_START_S if served_s is None else _LONGEST_S
        return float(min(longest_s, _FIRST_S * 2 ** min(self.num_deaths_in_a_row - 1, 16)))
