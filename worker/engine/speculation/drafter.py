"""Who guesses the tokens that a step is to confirm: the seam that each way of guessing fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import StepSize


class Drafter(Protocol):
    """May be wrong: a step confirms exactly the tokens that it would have chosen anyway.

    A step is planned in two passes: `plan` of each request that decodes, whose slots the scheduler
    then makes, and one `guess` for all of them together.
    """

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        """Drafts that a step of `num_rows` decoding requests may have."""
        ...

    def wants(self, req: Req) -> bool:
        """Whether it may ever guess for this request: the same at any time."""
        ...

    def plan(self, req: Req, max_tokens: int) -> int:
        """How many tokens it will guess behind those that the request has; often none.

        Asked once for each step in which the request decodes.
        """
        ...

    def guess(self) -> Mapping[Req, Sequence[int]]:
        """Guesses for all requests that were planned since the last call: at most what was said,
        and none where a request is missing.
        """
        ...

    def is_due(self, req: Req) -> bool:
        """Whether it may guess for its next step, for which everybody waits."""
        ...

    def sits_out(self, req: Req) -> bool:
        """Whether a request whose last token is awaited gains when it leaves out a step, alone, and
        guesses behind that token then.
        """
        ...

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        """How many of a step's drafts were right."""
        ...

    def on_step(self, size: StepSize) -> None:
        """A step is done."""
        ...

    def forget(self, req: Req) -> None:
        """It has left the batch: it has ended, or gives its pages to others and comes again."""
        ...
