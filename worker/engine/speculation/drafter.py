"""Who guesses the tokens that a step is to confirm: the seam that each way of guessing fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.engine.request.req import Req


class Drafter(Protocol):
    """May be wrong: a step confirms exactly the tokens that it would have chosen anyway."""

    @property
    def num_drafted(self) -> int:
        """Tokens, since start."""
        ...

    @property
    def num_accepted(self) -> int:
        """Of these, the right ones."""
        ...

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        """Drafts that a step of `num_rows` decoding requests may have."""
        ...

    def wants(self, req: Req) -> bool:
        """Whether it may ever guess for this request: the same at any time."""
        ...

    def draft(self, req: Req, max_tokens: int) -> Sequence[int]:
        """Up to `max_tokens` guesses for the step that is being planned; often none."""
        ...

    def is_due(self, req: Req) -> bool:
        """Whether `draft` may have guesses for its next step, for which everybody waits."""
        ...

    def sits_out(self, req: Req) -> bool:
        """Whether a request whose last token is awaited gains when it leaves out a step, alone, and
        guesses behind that token then.
        """
        ...

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        """How many of a step's drafts were right."""
        ...

    def forget(self, req: Req) -> None:
        """It has ended."""
        ...
