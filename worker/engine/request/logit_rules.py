"""What a request says of single tokens: biases, the ones it allows, the ones it bans, and the one
that ends its reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import SamplingParams, ThinkingBudget

Ids = npt.NDArray[np.int64]


class LogitRules:
    """The rules of one request, in the form in which a row of logits takes them.

    Frozen: which words are banned at a place is a function of the output before it.
    """

    def __init__(self, params: SamplingParams) -> None:
        bias = params.logit_bias
        self.bias_ids: Ids = np.array([token_id for token_id, _ in bias], np.int64)
        self.bias_values = np.array([value for _, value in bias], np.float32)
        self.allowed_ids: Ids = np.array(params.allowed_token_ids, np.int64)  # empty: all
        # Token sequences that must not come out whole: the banned last ids by what precedes them.
        self._last_ids: dict[tuple[int, ...], list[int]] = {}
        for word in params.bad_words:
            self._last_ids.setdefault(word[:-1], []).append(word[-1])
        self._prefix_lens = sorted({len(prefix) for prefix in self._last_ids})

    @classmethod
    def maybe_of(cls, params: SamplingParams) -> LogitRules | None:
        """None for a request without rules: it must cost nothing."""
        has_rules = params.logit_bias or params.allowed_token_ids or params.bad_words
        return cls(params) if has_rules else None

    @property
    def max_prefix_len(self) -> int:
        """How much of the output `banned_ids` looks at."""
        return self._prefix_lens[-1] if self._prefix_lens else 0

    def banned_ids(self, output_tail: Sequence[int]) -> list[int]:
        """The ids that would complete a bad word, given the end of the output."""
        banned: list[int] = []
        for length in self._prefix_lens:
            if length <= len(output_tail):
                prefix = tuple(output_tail[len(output_tail) - length :])
                banned += self._last_ids.get(prefix, ())
        return banned


class _Stand(NamedTuple):
    """Where an output stands in its reasoning."""

    num_tokens: int = 0  # of reasoning, without its marks
    is_open: bool = False
    num_begun: int = 0  # tokens of the opening mark that stand at the end of the output
    is_over: bool = False  # no more of it can begin


class ThoughtLimit:
    """How many tokens an output may spend on reasoning, and the token that ends it there.

    Follows one output: what it says is a function of the budget and the output alone.
    """

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
