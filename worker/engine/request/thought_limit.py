"""How many tokens an output may spend on reasoning, and the token that ends it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shared.protocol.sampling import SamplingParams, ThinkingBudget


class _Stand(NamedTuple):
    """Where an output stands in its reasoning."""

    num_tokens: int = 0  # of reasoning, without its marks
    is_open: bool = False
    num_begun: int = 0  # tokens of the opening mark that stand at the end of the output
    is_over: bool = False  # no more of it can begin


class ThoughtLimit:
    """Follows one output: what it says is a function of the budget and the output alone."""

    def __init__(self, budget: ThinkingBudget, num_prompt_tokens: int) -> None:
        self._budget = budget
        self._num_read = num_prompt_tokens  # of prompt and output
        self._stand = _Stand(is_open=budget.is_open)

    @classmethod
    def maybe_of(cls, params: SamplingParams, num_prompt_tokens: int) -> ThoughtLimit | None:
        """None for a request without a budget: it must cost nothing."""
        return None if params.thinking is None else cls(params.thinking, num_prompt_tokens)

    def forced_id(self, token_ids: Sequence[int], draft_ids: Sequence[int] = ()) -> int | None:
        """The token that must follow these; None: any may.

        `token_ids`: prompt and output, which only grows; `draft_ids`: guesses behind it.
        """
        self._read(token_ids)
        stand = self._after(draft_ids)
        is_spent = stand.is_open and stand.num_tokens >= self._budget.max_tokens
        return self._budget.end_id if is_spent else None

    def may_force_behind(self, token_ids: Sequence[int]) -> bool:
        """Whether the token after the next one may be forced, so that the next must be known."""
        self._read(token_ids)
        stand, budget = self._stand, self._budget
        if stand.is_over or stand.num_tokens + stand.is_open < budget.max_tokens:
            return False
        return stand.is_open or stand.num_begun == len(budget.begin_ids) - 1

    def _read(self, token_ids: Sequence[int]) -> None:
        self._stand = self._after(token_ids[self._num_read :])
        self._num_read = len(token_ids)

    def _after(self, token_ids: Iterable[int]) -> _Stand:
        stand = self._stand
        for token_id in token_ids:
            stand = self._next(stand, token_id)
        return stand

    def _next(self, stand: _Stand, token_id: int) -> _Stand:
        budget = self._budget
        if stand.is_over:
            return stand
        if stand.is_open and token_id == budget.end_id:
            return _Stand(stand.num_tokens, is_over=not budget.repeats)
        if stand.is_open:
            return stand._replace(num_tokens=stand.num_tokens + 1)
        num_begun = stand.num_begun + 1 if token_id == budget.begin_ids[stand.num_begun] else 0
        if not num_begun and token_id == budget.begin_ids[0]:
            num_begun = 1
        if num_begun == len(budget.begin_ids):
            return _Stand(stand.num_tokens, is_open=True)
        return stand._replace(num_begun=num_begun)
