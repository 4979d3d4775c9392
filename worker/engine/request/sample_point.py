"""A place in one step where a token is to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from worker.engine.request.req import Req


class SamplePoint(msgspec.Struct, frozen=True, gc=False):
    """One row of logits: what comes at `position` of a request.

    Behind the tokens that the request has come `draft_ids`: guesses that count, for penalties and
    min_tokens, as if they were its output already.
    """

    req: Req
    position: int  # of the token to be chosen, prompt included
    draft_ids: Sequence[int] = ()

    @classmethod
    def after(cls, req: Req) -> Self:
        """Where a request goes on without guesses."""
        return cls(req, req.num_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Before this one."""
        return self.position - self.req.num_prompt_tokens

    def output_tail(self, max_len: int) -> list[int]:
        """The last ids of the output before this place, guesses included."""
        req = self.req
        tail = req.token_ids[max(req.num_prompt_tokens, req.num_tokens - max_len) :].tolist()
        tail += self.draft_ids
        return tail[-max_len:] if max_len else []
