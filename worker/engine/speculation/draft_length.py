"""How many tokens a draft model guesses, by what its guesses cost and how many were right."""

from __future__ import annotations

FIRST_SHARE = 0.6  # of guesses that count as right before any was made
FIRST_LEN = 2
MIN_TRIED, MAX_TRIED = 4, 8  # steps with guesses of a trial
MAX_TRIAL_COST = 0.01  # of the time: what trials may take that show nothing
MIN_WAIT = 256  # steps between two of them

_WEIGHT = 1 / 16  # of the newest value, in a moving average
_GUESS_WEIGHT = 1 / 32  # the same of a guess
_NUM_PRIOR = 2  # guesses that the first opinion counts as, and the old one after a wait
_OUTLIER = 4.0  # a time counts as at most so many times what was expected


class CostLine:
    """What something takes by its size: a line through the times of late.

    The first time is left out: much is made then that others find. With one size seen, more of it
    seems free: then some is tried.
    """

    def __init__(self) -> None:
        self._size = self._size_squared = self._seconds = self._product = 0.0  # moving averages
        self._num_seen = 0

    def seconds(self, size: float) -> float:
        variance = self._size_squared - self._size**2
        covariance = self._product - self._size * self._seconds
        slope = max(0.0, covariance / variance) if variance > 1e-6 else 0.0
        return max(self._seconds + slope * (size - self._size), 0.1 * self._seconds)

    def add(self, size: int, elapsed_s: float) -> None:
        self._num_seen += 1
        if self._num_seen > 2:
            elapsed_s = min(elapsed_s, _OUTLIER * self.seconds(size))
        weight = max(_WEIGHT, 1 / max(1, self._num_seen - 1))
        self._size += weight * (size - self._size)
        self._size_squared += weight * (size**2 - self._size_squared)
        self._seconds += weight * (elapsed_s - self._seconds)
        self._product += weight * (size * elapsed_s - self._product)


class DraftLength:
    """The length with which a step gives the most tokens a second.

    Whether any does is first tried with one request. When none does, it is tried again after a
    wait, which is as long as makes such trials cheap: a model that guesses badly costs next to
    nothing, however many requests there are.
    """

    def __init__(self, max_len: int) -> None:
        self._max_len = max_len
        self._share = FIRST_SHARE  # of right ones among guesses behind which none was wrong
        self._num_seen = 0  # guesses, since the last wait
        self._steps, self._links = CostLine(), CostLine()  # by rows; by requests that guess
        self._num_tried = 0
        self._trial_s = 0.0  # what the last trial has cost
        self._num_waited, self._waited_s = 0, 0.0  # steps without guesses
        self.is_trial = True  # one request is enough to see whether guesses are any good
        self.length = min(max_len, FIRST_LEN)  # of the next step; 0: it has none

    def on_guesses(
        self, num_reqs: int, length: int, elapsed_s: float, *, is_usual: bool = True
    ) -> None:
        """Notes that `num_reqs` requests had up to `length` guesses each; it was not as usual where
        the small model has read more than what was new.
        """
        if is_usual:
            self._links.add(num_reqs, elapsed_s / length)
        if self.is_trial:
            self._trial_s += elapsed_s

    def on_result(self, num_drafted: int, num_accepted: int) -> None:
        """Hears of the result of one request's step."""
        self._num_tried += 1
        for idx in range(min(num_accepted + 1, num_drafted)):
            self._num_seen += 1
            weight = max(_GUESS_WEIGHT, 1 / (_NUM_PRIOR + self._num_seen))
            self._share += weight * ((idx < num_accepted) - self._share)

    def on_step(self, num_reqs: int, num_rows: int, elapsed_s: float) -> None:
        """A step without prompts is done, in which so many requests had so many rows."""
        self._steps.add(num_rows, elapsed_s)
        if not self.length:
            self._wait(elapsed_s)
            return
        if self.is_trial:
            self._trial_s += max(0.0, elapsed_s - self._steps.seconds(num_reqs))
            if self._num_tried < MIN_TRIED:
                return
        best = self._best(num_reqs)
        if not best:
            self.length, self.is_trial = 0, False
            self._num_waited, self._waited_s = 0, 0.0
        elif not self.is_trial or self._num_tried >= MAX_TRIED:
            self.length, self.is_trial = best, False

    def _wait(self, elapsed_s: float) -> None:
        self._num_waited += 1
        self._waited_s += elapsed_s
        if self._num_waited >= MIN_WAIT and self._waited_s * MAX_TRIAL_COST >= self._trial_s:
            self._num_seen = self._num_tried = 0
            self._trial_s = 0.0
            self.length, self.is_trial = min(self._max_len, FIRST_LEN), True

    def _best(self, num_reqs: int) -> int:
        speeds = [1 / self._steps.seconds(num_reqs)]
        num_tokens, link_s = 1.0, self._links.seconds(num_reqs)
        for length in range(1, self._max_len + 1):
            num_tokens += self._share**length
            step_s = self._steps.seconds(num_reqs * (1 + length)) + length * link_s
            speeds.append(num_tokens / step_s)
        return speeds.index(max(speeds))
