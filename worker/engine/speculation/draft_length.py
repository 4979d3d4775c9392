"""How many tokens a draft model guesses, by what its guesses cost and how many were right."""

from __future__ import annotations

FIRST_SHARE = 0.6  # of guesses that count as right before any was made
FIRST_LEN = 2
PROBE_STEPS = 2  # with guesses, after a wait
MIN_WAIT = 256  # steps
MAX_WAIT = 2048

_WEIGHT = 1 / 16  # of the newest value, in a moving average
_GUESS_WEIGHT = 1 / 32  # the same of a guess
_NUM_PRIOR = 4  # guesses that the first opinion counts as, and the old one after a wait
_OUTLIER = 4.0  # a time counts as at most so many times what was expected


class StepLine:
    """What a step of the model takes by its rows: a line through the times of late.

    With one number of rows seen, more of them seem free: then some are tried.
    """

    def __init__(self) -> None:
        self._rows = self._rows_squared = self._seconds = self._product = 0.0  # moving averages
        self.is_known = False

    def seconds(self, num_rows: float) -> float:
        variance = self._rows_squared - self._rows**2
        covariance = self._product - self._rows * self._seconds
        slope = max(0.0, covariance / variance) if variance > 1e-6 else 0.0
        return max(self._seconds + slope * (num_rows - self._rows), 0.1 * self._seconds)

    def add(self, num_rows: int, elapsed_s: float) -> None:
        if self.is_known:
            elapsed_s = min(elapsed_s, _OUTLIER * self.seconds(num_rows))
        weight = _WEIGHT if self.is_known else 1.0
        self.is_known = True
        self._rows += weight * (num_rows - self._rows)
        self._rows_squared += weight * (num_rows**2 - self._rows_squared)
        self._seconds += weight * (elapsed_s - self._seconds)
        self._product += weight * (num_rows * elapsed_s - self._product)


class DraftLength:
    """The length with which a step gives the most tokens a second. When that is none, a few steps
    try again after a wait, which doubles each time: a model that guesses badly costs next to
    nothing.
    """

    def __init__(self, max_len: int) -> None:
        self._max_len = max_len
        self._share = FIRST_SHARE  # of right ones among guesses behind which none was wrong
        self._num_seen = 0  # guesses, since the last wait
        self._steps = StepLine()
        self._link_s = 0.0  # of one guess of all requests
        self._wait = MIN_WAIT
        self._num_waits_left = 0
        self._num_probes_left = 0
        self.length = min(max_len, FIRST_LEN)  # of the next step; 0: it has none

    @property
    def is_probe(self) -> bool:
        """One request is enough to see whether guesses are any good."""
        return self._num_probes_left > 0

    def on_guesses(self, length: int, elapsed_s: float) -> None:
        """Of a step's requests, `length` each."""
        link_s = elapsed_s / length
        if self._link_s:
            link_s = min(link_s, _OUTLIER * self._link_s)
            link_s = self._link_s + _WEIGHT * (link_s - self._link_s)
        self._link_s = link_s

    def on_result(self, num_drafted: int, num_accepted: int) -> None:
        """Of one request's step."""
        for idx in range(min(num_accepted + 1, num_drafted)):
            self._num_seen += 1
            weight = max(_GUESS_WEIGHT, 1 / (_NUM_PRIOR + self._num_seen))
            self._share += weight * ((idx < num_accepted) - self._share)

    def on_step(self, num_reqs: int, num_rows: int, elapsed_s: float) -> None:
        """A step without prompts is done, in which so many requests had so many rows."""
        self._steps.add(num_rows, elapsed_s)
        if self._num_waits_left:
            self._num_waits_left -= 1
            if self._num_waits_left == 0:
                self._num_probes_left = PROBE_STEPS
                self._num_seen = 0
                self.length = min(self._max_len, FIRST_LEN)
            return
        if self._num_probes_left > 1:
            self._num_probes_left -= 1
            return
        self._num_probes_left = 0
        self.length = self._best(num_reqs)
        if self.length:
            self._wait = MIN_WAIT
        else:
            self._num_waits_left = self._wait
            self._wait = min(MAX_WAIT, 2 * self._wait)

    def _best(self, num_reqs: int) -> int:
        speeds = [1 / self._steps.seconds(num_reqs)]
        num_tokens = 1.0
        for length in range(1, self._max_len + 1):
            num_tokens += self._share**length
            step_s = self._steps.seconds(num_reqs * (1 + length)) + length * self._link_s
            speeds.append(num_tokens / step_s)
        return speeds.index(max(speeds))
