"""How many tokens the next step may have: it must not take too long, nor too much memory."""

from __future__ import annotations

from typing import NamedTuple

from worker.engine.request.schedule_batch import StepSize

MIN_TOKENS = 16
CALM_STEPS = 256
# The default of `target_itl_s`: so many times what a step without prefill takes.
ITL_IN_DECODE_STEPS = 3.0

_WEIGHT = 0.25  # of the newest step, in a moving average
_OUTLIER = 4.0  # a step counts as at most so many times what was expected: somebody took the core


class StepCosts:
    """Moving averages in seconds, from the steps themselves.

    The time of a step without prefill is kept by the number of requests that decode in it, in
    powers of two, guesses included: how many of those there will be, nobody knows before. What a
    step with prefill took beyond that is shared among its prompt tokens.
    """

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}  # by bit_length of the number of requests
        self._prefill_token_s: float | None = None

    @property
    def prefill_token_s(self) -> float | None:
        """How long one token of a prompt takes; None before there was any."""
        return self._prefill_token_s

    def decode_s(self, num_decoding: int) -> float | None:
        """How long a step takes in which so many requests decode: that of the nearest number that
        was seen, the smaller of two; None before there was any.
        """
        if not self._decode_s:
            return None
        size = num_decoding.bit_length()
        nearest = min(self._decode_s, key=lambda seen: (abs(seen - size), seen))
        return self._decode_s[nearest]

    def on_step(self, num_decoding: int, num_prefilled: int, elapsed_s: float) -> None:
        """`num_decoding` requests, and `num_prefilled` tokens of prompts."""
        if num_prefilled == 0:
            size = num_decoding.bit_length()
            self._decode_s[size] = _averaged(self._decode_s.get(size), elapsed_s)
            return
        decode_s = (self.decode_s(num_decoding) or 0.0) if num_decoding else 0.0
        prefill_s = max(0.0, elapsed_s - decode_s)
        self._prefill_token_s = _averaged(self._prefill_token_s, prefill_s / num_prefilled)


def _averaged(average: float | None, sample: float) -> float:
    if not average:
        return sample
    return average + _WEIGHT * (min(sample, _OUTLIER * average) - average)


class StepTargets(NamedTuple):
    """How long steps may take, in seconds."""

    max_step_s: float  # any step, but for one with the fewest tokens
    target_itl_s: float | None  # one in which requests decode; None: ITL_IN_DECODE_STEPS
    target_ttft_s: float  # more of `target_itl_s` when prompts would wait for longer


class StepBudget:
    """At most `max_tokens`; fewer while steps of that size take more than `max_step_s`, and while
    requests decode beside prompts.

    Whoever decodes waits for the prefill chunks of others: a step with both is to take
    `target_itl_s`, by what steps cost lately. When the prompts that wait need k times
    `target_ttft_s` at that pace, it may take k times as long, up to `max_step_s`: under load,
    throughput counts, and it is larger chunks that have it. An engine that takes no step for some
    seconds counts as dead.

    Memory that was short once may be short for long, and each time costs attempts: after
    `CALM_STEPS` steps for which it sufficed, twice as many tokens are tried again.
    """

    def __init__(self, max_tokens: int, max_running: int, targets: StepTargets) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = min(max_tokens, max(max_running, MIN_TOKENS))
        self._targets = targets
        self._costs = StepCosts()
        self._room = max_tokens  # in memory
        self._num_calm = 0  # steps since memory was short, or since it was thought to be larger
        self.num_tokens = max_tokens

    @property
    def prefill_token_s(self) -> float | None:
        """How long a token of a prompt takes, lately; None before there was any."""
        return self._costs.prefill_token_s

    def num_prefill_tokens(self, num_decoding: int, num_waiting_tokens: int) -> int:
        """How many of the tokens may be prompts', when so many requests decode, and prompts of so
        many tokens wait.
        """
        decode_s = self._costs.decode_s(num_decoding)
        token_s = self._costs.prefill_token_s
        if not num_decoding or not num_waiting_tokens or not decode_s or not token_s:
            return self.num_tokens
        step_s = self._targets.target_itl_s or ITL_IN_DECODE_STEPS * decode_s
        prefill_s = max(step_s - decode_s, MIN_TOKENS * token_s)
        wait_s = num_waiting_tokens * token_s * (1 + decode_s / prefill_s)
        step_s *= max(1.0, wait_s / self._targets.target_ttft_s)
        num_prefilled = round((min(step_s, self._targets.max_step_s) - decode_s) / token_s)
        return min(self.num_tokens, max(MIN_TOKENS, num_prefilled))

    def on_step(self, size: StepSize, elapsed_s: float) -> None:
        """Shrinks to what would have fitted; doubles when a full step took less than half."""
        num_tokens = size.num_tokens
        if num_tokens:
            self._costs.on_step(size.num_decoding, size.num_prefilled, elapsed_s)
        if elapsed_s > self._targets.max_step_s:
            fitting = int(num_tokens * self._targets.max_step_s / elapsed_s)
            self.num_tokens = max(self._min_tokens, min(self.num_tokens, fitting))
        elif num_tokens >= self.num_tokens and elapsed_s < self._targets.max_step_s / 2:
            self.num_tokens = min(self._room, self.num_tokens * 2)
        self._num_calm += 1
        if self._num_calm == CALM_STEPS:
            self._num_calm = 0
            self._room = min(self._max_tokens, self._room * 2)

    def on_shortage(self, num_fitting: int) -> None:
        """Memory had room for so many tokens at once, no more."""
        self._room = max(self._min_tokens, num_fitting)
        self.num_tokens = min(self.num_tokens, self._room)
        self._num_calm = 0
