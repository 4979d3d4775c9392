"""A beam search as arithmetic: which outputs go on, and which are found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from shared.protocol.sampling import BeamParams, EarlyStopping


class Candidate(NamedTuple):
    """An output so far."""

    token_ids: tuple[int, ...]
    logprob: float  # the sum of its tokens'


class Found(NamedTuple):
    """An output that is complete."""

    candidate: Candidate
    score: float
    is_stopped: bool  # by an end token; else by its length


class BeamSearch:
    """As transformers' `generate` with `num_beams`, `length_penalty` and `early_stopping`.

    Of all continuations by one token the `num_considered` likeliest are looked at. Of the first
    `width` of these, those that end are found outputs; of the others the first `width` go on. Kept
    are the `width` best found, by score.
    """

    def __init__(self, params: BeamParams, max_tokens: int, end_ids: Collection[int]) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._length = 0
        self.running: list[Candidate] = [Candidate((), 0.0)]  # the likeliest first
        self.found: list[Found] = []  # the best first
        self.is_over = False

    @property
    def num_considered(self) -> int:
        """So many go on without an end token, even if each beam has all of them on top.

        As many continuations of each beam are needed.
        """
        return max(2, 1 + len(self._end_ids)) * self._params.width

    def advance(self, continuations: Sequence[Sequence[tuple[int, float]]]) -> None:
        """One token further: the likeliest next tokens of each running beam, and their logprobs."""
        width = self._params.width
        grown = [
            Candidate((*beam.token_ids, token_id), beam.logprob + logprob)
            for beam, nexts in zip(self.running, continuations, strict=True)
            for token_id, logprob in nexts
        ]
        grown.sort(key=lambda candidate: -candidate.logprob)  # stable: of equals the better beam's
        del grown[self.num_considered :]
        self._length += 1
        is_last = self._length >= self._max_tokens
        for candidate in grown[:width]:
            is_stopped = candidate.token_ids[-1] in self._end_ids
            if is_stopped or is_last:
                self.found.append(Found(candidate, self._score(candidate), is_stopped))
        self.found.sort(key=lambda found: -found.score)
        del self.found[width:]
        self.running = [each for each in grown if each.token_ids[-1] not in self._end_ids][:width]
        self.is_over = is_last or not self.running or not self._can_improve()

    def _score(self, candidate: Candidate) -> float:
        score: float = candidate.logprob / len(candidate.token_ids) ** self._params.length_penalty
        return score

    def _can_improve(self) -> bool:
        if len(self.found) < self._params.width:
            return True
        if self._params.early_stopping is EarlyStopping.NOW:
            return False
        penalty = self._params.length_penalty
        is_certain = self._params.early_stopping is EarlyStopping.CERTAIN
        length = self._max_tokens if is_certain and penalty > 0 else self._length
        best_possible: float = self.running[0].logprob / length**penalty
        return best_possible > self.found[-1].score
