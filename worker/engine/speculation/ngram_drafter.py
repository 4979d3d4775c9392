"""Guesses a request's next tokens: what followed the same words before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.request.req import Req
from worker.engine.speculation.draft_pace import DraftPace
from worker.engine.speculation.ngram_index import NgramIndex

MAX_STEP_ROWS = 64  # with more of them, arithmetic bounds a step, and no draft comes for free
MAX_BUDGET_SHARE = 4  # a fourth of what the decodes leave: the rest is for prefills


@dataclass(slots=True)
class _Draft:
    index: NgramIndex
    pace: DraftPace


class NgramDrafter:
    """Drafts from a request's own prompt and output.

    Cheap enough to be wrong: a step confirms exactly the tokens that it would have chosen anyway.
    """

    def __init__(self, num_draft_tokens: int, min_ngram_len: int, max_ngram_len: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self._min_ngram_len = min_ngram_len
        self._max_ngram_len = max_ngram_len
        self._drafts: dict[int, _Draft] = {}  # by run_id
        self.num_drafted = 0  # tokens, since start
        self.num_accepted = 0  # of which were right

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        """Drafts that a step of `num_rows` decoding requests may have."""
        return max(0, min(MAX_STEP_ROWS - num_rows, num_tokens_left // MAX_BUDGET_SHARE))

    def draft(self, req: Req, max_tokens: int) -> Sequence[int]:
        """Up to `max_tokens` guesses for the step that is being planned; often none.

        A grammar allows or forbids a token by those before it: guesses would have to go through
        its matcher and back.
        """
        if req.matcher is not None:
            return ()
        draft = self._drafts.get(req.run_id) or self._start(req)
        num_tokens = min(max_tokens, draft.pace.next_num_drafts())
        if num_tokens < 1:
            return ()
        return draft.index.continuation(req.token_ids, num_tokens)

    def is_due(self, req: Req) -> bool:
        """Whether `draft` may have guesses for its next step."""
        draft = self._drafts.get(req.run_id)
        return req.matcher is None and (draft is None or draft.pace.is_due)

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        """How many of a step's drafts were right."""
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        if req.run_id in self._drafts:
            self._drafts[req.run_id].pace.on_result(num_drafted, num_accepted)

    def forget(self, req: Req) -> None:
        """It has ended."""
        self._drafts.pop(req.run_id, None)

    def _start(self, req: Req) -> _Draft:
        draft = _Draft(
            NgramIndex(self._min_ngram_len, self._max_ngram_len),
            DraftPace(self._num_draft_tokens),
        )
        self._drafts[req.run_id] = draft
        return draft
