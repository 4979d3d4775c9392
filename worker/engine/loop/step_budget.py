"""How many tokens the next step may have: it must not take too long, nor too much memory."""

from __future__ import annotations

MIN_TOKENS = 16
CALM_STEPS = 256


class StepBudget:
    """At most `max_tokens`; fewer while steps of that size take more than `max_step_s`.

    Whoever decodes waits for the prefill chunks of others, and an engine that takes no step for
    some seconds counts as dead: the budget follows the speed of model and machine.

    Memory that was short once may be short for long, and each time costs attempts: after
    `CALM_STEPS` steps for which it sufficed, twice as many tokens are tried again.
    """

    def __init__(self, max_tokens: int, max_running: int, max_step_s: float) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = min(max_tokens, max(max_running, MIN_TOKENS))
        self._max_step_s = max_step_s
        self._room = max_tokens  # in memory
        self._num_calm = 0  # steps since memory was short, or since it was thought to be larger
        self.num_tokens = max_tokens

    def on_step(self, num_tokens: int, elapsed_s: float) -> None:
        """Shrinks to what would have fitted; doubles when a full step took less than half."""
        if elapsed_s > self._max_step_s:
            fitting = int(num_tokens * self._max_step_s / elapsed_s)
            self.num_tokens = max(self._min_tokens, min(self.num_tokens, fitting))
        elif num_tokens >= self.num_tokens and elapsed_s < self._max_step_s / 2:
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
