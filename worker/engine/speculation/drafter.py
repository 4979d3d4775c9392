"""Who guesses the tokens that a step is to confirm: the seam that each way of guessing fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.engine.request.req import Req


class Drafter(Protocol):
    """May be wrong: a step confirms exactly the tokens that it would have chosen anyway."""

    num_drafted: int  # tokens, since start
    num_accepted: int  # of which were right

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        """Drafts that a step of `num_rows` decoding requests may have."""
        ...

    def draft(self, req: Req, max_tokens: int) -> Sequence[int]:
        """Up to `max_tokens` guesses for the step that is being planned; often none."""
        ...

    def is_due(self, req: Req) -> bool:
        """Whether `draft` may have guesses for its next step."""
        ...

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        """How many of a step's drafts were right."""
        ...

    def forget(self, req: Req) -> None:
        """It has ended."""
        ...
