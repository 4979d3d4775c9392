"""Guesses what a grammar leaves one way for: keys of objects, braces, words of a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import StepSize
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

    Where there is no such text, and of requests without a grammar, `others` guess.
    """

    def __init__(self, others: Drafter | None) -> None:
        self._others = others
        self._paces: dict[int, DraftPace] = {}  # by run_id
        self._forced: dict[Req, Sequence[int]] = {}  # of the step that is being planned
        self._launched: set[int] = set()  # run_ids whose step has guesses of ours

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        if self._others is not None:
            return self._others.step_budget(num_rows, num_tokens_left)
        return max(0, num_tokens_left // MAX_BUDGET_SHARE)

    def wants(self, req: Req) -> bool:
        return req.matcher is not None or (self._others is not None and self._others.wants(req))

    def plan(self, req: Req, max_tokens: int) -> int:
        forced_ids = self._forced_ids(req, max_tokens)
        if forced_ids:
            self._forced[req] = forced_ids
            return len(forced_ids)
        if self._others is None or not self._others.wants(req):
            return 0
        return self._others.plan(req, max_tokens)

    def guess(self) -> Mapping[Req, Sequence[int]]:
        forced, self._forced = self._forced, {}
        self._launched.update(req.run_id for req in forced)
        return forced if self._others is None else {**self._others.guess(), **forced}

    def is_due(self, req: Req) -> bool:
        return self._others is not None and self._others.is_due(req)

    def sits_out(self, req: Req) -> bool:
        """The first of the forced tokens is the one that is awaited."""
        matcher = req.matcher
        if matcher is None or not self._pace(req).is_due:
            return False
        return len(matcher.forced_ids()) > MIN_GAIN

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        if req.run_id in self._launched:
            self._launched.discard(req.run_id)
            if req.run_id in self._paces:
                self._paces[req.run_id].on_result(num_drafted, num_accepted)
        elif self._others is not None:
            self._others.on_result(req, num_drafted, num_accepted)

    def on_step(self, size: StepSize) -> None:
        if self._others is not None:
            self._others.on_step(size)

    def forget(self, req: Req) -> None:
        self._paces.pop(req.run_id, None)
        self._launched.discard(req.run_id)
        if self._others is not None:
            self._others.forget(req)

    def _forced_ids(self, req: Req, max_tokens: int) -> Sequence[int]:
        if req.matcher is None:
            return ()
        num_tokens = min(max_tokens, self._pace(req).next_num_drafts())
        if num_tokens < 1 or req.num_awaited:
            return ()
        return req.matcher.forced_ids()[:num_tokens]

    def _pace(self, req: Req) -> DraftPace:
        pace = self._paces.get(req.run_id)
        if pace is None:
            pace = self._paces[req.run_id] = DraftPace(MAX_FORCED)
        return pace
