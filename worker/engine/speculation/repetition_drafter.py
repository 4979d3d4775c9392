"""Guesses a request's next tokens by what has been said before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker.engine.request.req import Req, ReqStatus
from worker.engine.request.schedule_batch import StepSize
from worker.engine.speculation.draft_pace import DraftPace
from worker.engine.speculation.earlier_outputs import EarlierOutputs, OutputCursor
from worker.engine.speculation.token_index import TokenIndex

MAX_STEP_ROWS = 64  # with more of them, arithmetic bounds a step, and no draft comes for free
MAX_BUDGET_SHARE = 4  # a fourth of what the decodes leave: the rest is for prefills


@dataclass(slots=True)
class _Draft:
    index: TokenIndex
    pace: DraftPace
    cursor: OutputCursor | None  # in what others have said


class RepetitionDrafter:
    """A `Drafter` that goes by a request's own prompt and output, and costs next to nothing; then
    by what earlier requests of the same namespace have said.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        make_index: Callable[[], TokenIndex],
        earlier: EarlierOutputs | None = None,
    ) -> None:
        """`make_index`: of one request, before it has any token; `earlier`: None for own alone."""
        self._num_draft_tokens = num_draft_tokens
        self._make_index = make_index
        self._earlier = earlier
        self._drafts: dict[int, _Draft] = {}  # by run_id
        self._guesses: dict[Req, Sequence[int]] = {}  # of the step that is being planned

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        return max(0, min(MAX_STEP_ROWS - num_rows, num_tokens_left // MAX_BUDGET_SHARE))

    def wants(self, req: Req) -> bool:
        return True

    def plan(self, req: Req, max_tokens: int) -> int:
        draft = self._drafts.get(req.run_id) or self._start(req)
        num_tokens = min(max_tokens, draft.pace.next_num_drafts())
        if num_tokens < 1:
            return 0
        guesses = draft.index.continuation(req.token_ids, num_tokens)
        if draft.cursor is not None and len(guesses) < num_tokens:
            others = draft.cursor.continuation(req.token_ids, num_tokens)
            guesses = max(guesses, others, key=len)  # the longer it has repeated, the more
        if req.matcher is not None and guesses:
            guesses = guesses[: req.matcher.num_allowed(guesses)]
        if guesses:
            self._guesses[req] = guesses
        return len(guesses)

    def guess(self) -> Mapping[Req, Sequence[int]]:
        guesses, self._guesses = self._guesses, {}
        if self._earlier is not None:
            self._earlier.read_some()
        return guesses

    def is_due(self, req: Req) -> bool:
        draft = self._drafts.get(req.run_id)
        return draft is None or draft.pace.is_due

    def sits_out(self, req: Req) -> bool:
        return False

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        if req.run_id in self._drafts:
            self._drafts[req.run_id].pace.on_result(num_drafted, num_accepted)

    def on_step(self, size: StepSize) -> None:
        """Guesses cost next to nothing."""

    def forget(self, req: Req) -> None:
        self._drafts.pop(req.run_id, None)
        if self._earlier is not None and req.status is ReqStatus.FINISHED:
            self._earlier.add(req)

    def _start(self, req: Req) -> _Draft:
        cursor = None if self._earlier is None else self._earlier.cursor(req)
        draft = _Draft(self._make_index(), DraftPace(self._num_draft_tokens), cursor)
        self._drafts[req.run_id] = draft
        return draft
