"""How much of the running requests' future output an admission leaves room for."""

from __future__ import annotations

from collections.abc import Iterable

from worker.engine.request.req import Req

INITIAL = 0.7
MINIMUM = 0.1
NUM_STEPS = 600  # from the first to the second
MORE_TOKENS = 20  # that each request makes, at least, before the next retraction


class ReserveRatio:
    """A share of the output still allowed: falls while all goes well, rises at a retraction."""

    def __init__(self) -> None:
        self.value = INITIAL

    def on_step(self) -> None:
        self.value = max(MINIMUM, self.value - (INITIAL - MINIMUM) / NUM_STEPS)

    def on_retraction(self, running: Iterable[Req]) -> None:
        """At least what those that go on have used so far of their own allowance, and some more."""
        num_used = num_allowed = 0
        for req in running:
            num_used += req.num_output_tokens + MORE_TOKENS
            num_allowed += req.sampling.max_tokens
        if num_allowed:
            self.value = max(self.value, min(1.0, num_used / num_allowed))
