"""Guesses a request's next tokens by what it has said before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engine.request.req import Req
from worker.engine.speculation.draft_pace import DraftPace
from worker.engine.speculation.token_index import TokenIndex

MAX_STEP_ROWS = 64  # with more of them, arithmetic bounds a step, and no draft comes for free
MAX_BUDGET_SHARE = 4  # a fourth of what the decodes leave: the rest is for prefills


@dataclass(slots=True)
class _Draft:
    index: TokenIndex
    pace: DraftPace


class RepetitionDrafter:
    """A `Drafter` that goes by a request's own prompt and output, and costs next to nothing."""

    def __init__(self, num_draft_tokens: int, make_index: Callable[[], TokenIndex]) -> None:
        """`make_index`: of one request, before it has any token."""
        self._num_draft_tokens = num_draft_tokens
        self._make_index = make_index
        self._drafts: dict[int, _Draft] = {}  # by run_id
        self.num_drafted = 0  # tokens, since start
        self.num_accepted = 0  # of which were right

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        return max(0, min(MAX_STEP_ROWS - num_rows, num_tokens_left // MAX_BUDGET_SHARE))

    def wants(self, req: Req) -> bool:
        """Not of a grammar: what it has said before seldom fits."""
        return req.matcher is None

    def draft(self, req: Req, max_tokens: int) -> Sequence[int]:
        draft = self._drafts.get(req.run_id) or self._start(req)
        num_tokens = min(max_tokens, draft.pace.next_num_drafts())
        if num_tokens < 1:
            return ()
        return draft.index.continuation(req.token_ids, num_tokens)

    def is_due(self, req: Req) -> bool:
        draft = self._drafts.get(req.run_id)
        return self.wants(req) and (draft is None or draft.pace.is_due)

    def sits_out(self, req: Req) -> bool:
        return False

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        if req.run_id in self._drafts:
            self._drafts[req.run_id].pace.on_result(num_drafted, num_accepted)

    def forget(self, req: Req) -> None:
        self._drafts.pop(req.run_id, None)

    def _start(self, req: Req) -> _Draft:
        draft = _Draft(self._make_index(), DraftPace(self._num_draft_tokens))
        self._drafts[req.run_id] = draft
        return draft
