"""What requests say of single tokens: biases, those they may choose, may not choose, must."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.sampling.logits_processor import (
    LogitChange,
    LogitPlace,
    RowPoint,
    TokenPairs,
    Vocabulary,
)


@dataclass(frozen=True, slots=True)
class TokenBias(TokenPairs):
    """What is added to the logits of tokens."""

    values: torch.Tensor  # [num_pairs] float32

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        places = place.put(self.rows) * logits.shape[1] + place.put(self.token_ids)
        logits.view(-1).index_add_(0, places, place.put(self.values))


class TokenBiases:
    """`logit_bias`."""

    def wants(self, req: Req) -> bool:
        return req.logit_rules is not None and len(req.logit_rules.bias_ids) > 0

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        parts = [
            (np.full(len(rules.bias_ids), row, np.int64), rules.bias_ids, rules.bias_values)
            for row, point in points
            if (rules := point.req.logit_rules) is not None
        ]
        rows, token_ids, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        is_known = token_ids < vocabulary.size
        rows, token_ids, values = rows[is_known], token_ids[is_known], values[is_known]
        return TokenBias(
            torch.from_numpy(rows), torch.from_numpy(token_ids), torch.from_numpy(values)
        )


@dataclass(frozen=True, slots=True)
class Allowed:
    """The only tokens that rows may choose; a row may stand several times."""

    by_row: list[tuple[int, torch.Tensor]]  # row, and [num_ids] int64: all else becomes -inf

    @property
    def changed_rows(self) -> Iterable[int]:
        return [row for row, _ in self.by_row]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        for row, token_ids in self.by_row:
            ids = place.put(token_ids)
            allowed = logits[row, ids]
            logits[row] = -torch.inf
            logits[row, ids] = allowed


class AllowedTokens:
    """`allowed_token_ids`."""

    def wants(self, req: Req) -> bool:
        return req.logit_rules is not None and len(req.logit_rules.allowed_ids) > 0

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        return Allowed(
            [
                (row, torch.from_numpy(rules.allowed_ids[rules.allowed_ids < vocabulary.size]))
                for row, point in points
                if (rules := point.req.logit_rules) is not None
            ]
        )


@dataclass(frozen=True, slots=True)
class Banned(TokenPairs):
    """Tokens whose logits become -inf."""

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        pairs = place.put(self.rows), place.put(self.token_ids)
        logits.index_put_(pairs, logits.new_full((), -torch.inf))


class BannedTokens:
    """`bad_words`, and until `min_tokens` what would end the output."""

    def wants(self, req: Req) -> bool:
        return req.sampling.min_tokens > 0 or req.logit_rules is not None

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        pairs = [
            (row, token_id)
            for row, point in points
            for token_id in _banned_ids(point)
            if token_id < vocabulary.size
        ]
        if not pairs:
            return None
        rows, token_ids = zip(*pairs, strict=True)
        return Banned(torch.tensor(rows), torch.tensor(token_ids))


def _banned_ids(point: SamplePoint) -> Iterator[int]:
    """Until it has min_tokens, a request may not choose a token that would end it.

    A grammar takes care of that itself: its output may be complete before.
    """
    req = point.req
    if req.matcher is None and point.num_output_tokens < req.sampling.min_tokens:
        yield from req.stop_token_ids
    rules = req.logit_rules
    if rules is not None:
        yield from rules.banned_ids(point.output_tail(rules.max_prefix_len))


@dataclass(frozen=True, slots=True)
class Forced(TokenPairs):
    """The only token that a row may choose, each row once."""

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        rows, token_ids = place.put(self.rows), place.put(self.token_ids)
        values = logits[rows, token_ids]
        alone = torch.full_like(logits[rows], -torch.inf)
        alone[torch.arange(len(rows), device=alone.device), token_ids] = values
        # Where something else forbids the token, as a grammar does within a character: not yet.
        logits[rows] = torch.where(values[:, None] > -torch.inf, alone, logits[rows])


class ForcedTokens:
    """`thinking_token_budget`: behind it comes the mark that closes the reasoning."""

    def wants(self, req: Req) -> bool:
        return req.thought_limit is not None

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        pairs = [
            (row, token_id)
            for row, point in points
            if (limit := point.req.thought_limit) is not None
            and (token_id := limit.forced_id(point.req.token_ids, point.draft_ids)) is not None
            and token_id < vocabulary.size
        ]
        if not pairs:
            return None
        rows, token_ids = zip(*pairs, strict=True)
        return Forced(torch.tensor(rows), torch.tensor(token_ids))
