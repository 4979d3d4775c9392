"""Guesses what a grammar leaves one way for: keys of objects, braces, words of a choice."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.request.req import Req
from worker.engine.speculation.draft_pace import DraftPace
from worker.engine.speculation.drafter import Drafter

MAX_FORCED = 32
MIN_GAIN = 2  # steps, beyond the one that a request leaves out
MAX_BUDGET_SHARE = 4  # a fourth of what the decodes leave: the rest is for prefills


class GrammarDrafter:
    """A `Drafter` of the text that must come, in the tokenizer's own cut of it.

    The text has one way, its tokens have many: a model may write `"na` and `me"` where the
    tokenizer writes `"` and `name"`. So they are guesses, confirmed as any others, and an output
    has the tokens that it would have without. Models mostly cut as their tokenizer does; of one
    that does not, `DraftPace` soon guesses less.

    Requests without a grammar are `others`' to guess for.
    """

    def __init__(self, others: Drafter | None) -> None:
        self._others = others
        self._paces: dict[int, DraftPace] = {}  # by run_id
        self._num_drafted = 0
        self._num_accepted = 0

    @property
    def num_drafted(self) -> int:
        return self._num_drafted + (self._others.num_drafted if self._others else 0)

    @property
    def num_accepted(self) -> int:
        return self._num_accepted + (self._others.num_accepted if self._others else 0)

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        if self._others is not None:
            return self._others.step_budget(num_rows, num_tokens_left)
        return max(0, num_tokens_left // MAX_BUDGET_SHARE)

    def wants(self, req: Req) -> bool:
        return req.matcher is not None or (self._others is not None and self._others.wants(req))

    def draft(self, req: Req, max_tokens: int) -> Sequence[int]:
        if req.matcher is None:
            return self._others.draft(req, max_tokens) if self._others is not None else ()
        if req.num_awaited or max_tokens < 1:
            return ()
        num_tokens = min(max_tokens, self._pace(req).next_num_drafts())
        return req.matcher.forced_ids()[:num_tokens] if num_tokens else ()

    def is_due(self, req: Req) -> bool:
        return self._others is not None and req.matcher is None and self._others.is_due(req)

    def sits_out(self, req: Req) -> bool:
        """The first of the forced tokens is the one that is awaited."""
        matcher = req.matcher
        if matcher is None or not self._pace(req).is_due:
            return False
        return len(matcher.forced_ids()) > MIN_GAIN

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        if req.matcher is None:
            if self._others is not None:
                self._others.on_result(req, num_drafted, num_accepted)
            return
        self._num_drafted += num_drafted
        self._num_accepted += num_accepted
        if req.run_id in self._paces:
            self._paces[req.run_id].on_result(num_drafted, num_accepted)

    def forget(self, req: Req) -> None:
        self._paces.pop(req.run_id, None)
        if self._others is not None:
            self._others.forget(req)

    def _pace(self, req: Req) -> DraftPace:
        pace = self._paces.get(req.run_id)
        if pace is None:
            pace = self._paces[req.run_id] = DraftPace(MAX_FORCED)
        return pace
