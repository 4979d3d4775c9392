"""The sampling parameters of one step's rows, as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.request.dry_penalty import DryPenalty
from worker.engine.request.req import Req
from worker.engine.request.sample_point import SamplePoint
from worker.engine.sampling.grammar_masks import GrammarMasks, grammar_masks
from worker.engine.sampling.narrowing import Narrowing
from worker.engine.sampling.row_params import RowParams

_RowPoint: TypeAlias = tuple[int, SamplePoint]  # a row of logits, and what is asked for there


@dataclass(frozen=True, slots=True)
class TokenBias:
    """What is added to single logits, one entry for each pair of row and token id."""

    rows: torch.Tensor  # [num_pairs] int64
    token_ids: torch.Tensor  # [num_pairs] int64
    values: torch.Tensor  # [num_pairs] float32


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalised tokens, one entry for each pair of row and token id."""

    rows: torch.Tensor  # [num_pairs] int64
    token_ids: torch.Tensor  # [num_pairs] int64
    repetition: torch.Tensor  # [num_pairs] float32, of the row; 1 is none
    subtracted: torch.Tensor  # [num_pairs] float32, frequency and presence penalty and DRY together


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to choose one token for each row of logits. Host memory; numpy where rows are few."""

    params: RowParams
    positions: list[int]  # [num_rows], of the token to be chosen, prompt included
    bias: TokenBias | None
    allowed: list[tuple[int, torch.Tensor]]  # row, and [num_ids] int64: nothing else may be chosen
    banned: tuple[torch.Tensor, torch.Tensor] | None  # rows and token ids, [num_pairs] int64 each
    grammar_masks: GrammarMasks | None
    penalties: Penalties | None
    narrowings: list[tuple[int, Narrowing]]  # of single rows

    @property
    def changed_rows(self) -> list[int]:
        """Rows whose logits something changes before a token is chosen."""
        rows = {row for row, _ in self.allowed}
        if self.bias is not None:
            rows |= set(self.bias.rows.tolist())
        if self.banned is not None:
            rows |= set(self.banned[0].tolist())
        if self.grammar_masks is not None:
            rows |= set(self.grammar_masks.rows)
        if self.penalties is not None:
            rows |= set(self.penalties.rows.tolist())
        rows |= {row for row, _ in self.narrowings}
        return sorted(rows)

    @classmethod
    def from_points(
        cls,
        points: Sequence[SamplePoint],
        vocab_size: int,
        grammars: GrammarBackend | None = None,
        params: RowParams | None = None,
    ) -> SamplingBatch:
        """`grammars` made the matchers of those requests that have one; `params`, when given, are
        those of the points' requests.
        """
        params = params or RowParams.of([point.req for point in points])
        changed = [(row, points[row]) for row in params.changing_rows]
        masked = [(row, points[row]) for row in params.grammar_rows]
        return cls(
            params=params,
            positions=[point.position for point in points],
            bias=_bias(changed, vocab_size),
            allowed=_allowed(changed, vocab_size),
            banned=_banned(changed, vocab_size),
            grammar_masks=None if grammars is None else grammar_masks(masked, grammars, vocab_size),
            penalties=_penalties(changed, vocab_size),
            narrowings=[
                (row, Narrowing.at(points[row].req.sampling, points[row].position))
                for row in params.narrowed_rows
            ],
        )


def _penalties(points: Iterable[_RowPoint], vocab_size: int) -> Penalties | None:
    parts = [
        (row, _penalised(point, vocab_size)) for row, point in points if point.req.has_penalties
    ]
    if not parts:
        return None
    rows = np.repeat([row for row, _ in parts], [len(part.token_ids) for _, part in parts])
    token_ids, repetition, subtracted = (
        torch.from_numpy(np.concatenate(columns))
        for columns in zip(*(part for _, part in parts), strict=True)
    )
    return Penalties(torch.from_numpy(rows), token_ids, repetition, subtracted)


class _Penalised(NamedTuple):
    """Of one row, as `Penalties` has them."""

    token_ids: npt.NDArray[np.int64]  # each once
    repetition: npt.NDArray[np.float32]
    subtracted: npt.NDArray[np.float32]


def _penalised(point: SamplePoint, vocab_size: int) -> _Penalised:
    """Repetition and DRY count prompt and output, the other two the output alone."""
    req, params = point.req, point.req.sampling
    output_ids, counts = _counted(point)
    subtracted = params.frequency_penalty * counts + np.float32(params.presence_penalty)
    if params.repetition_penalty != 1.0 and params.penalty_last_n is None:
        only_in_prompt = np.setdiff1d(_prompt_ids(req), output_ids)
        output_ids = np.concatenate([output_ids, only_in_prompt])
        subtracted = np.concatenate([subtracted, np.zeros(len(only_in_prompt), np.float32)])
    is_known = output_ids < vocab_size
    penalised = _Penalised(
        output_ids[is_known],
        np.full(int(is_known.sum()), params.repetition_penalty, np.float32),
        subtracted[is_known].astype(np.float32),
    )
    return penalised if req.dry is None else _with_dry(penalised, req.dry, point, vocab_size)


def _counted(point: SamplePoint) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The ids of the output, or of the last tokens that a request names, and how often each is."""
    last_n = point.req.sampling.penalty_last_n
    if last_n is None:
        counts = _output_counts(point)
        values = np.fromiter(counts.values(), np.float32, len(counts))
        return np.fromiter(counts, np.int64, len(counts)), values
    ids, times = np.unique(_last_ids(point, last_n), return_counts=True)
    return ids, times.astype(np.float32)


def _last_ids(point: SamplePoint, last_n: int) -> npt.NDArray[np.int64]:
    """Of prompt, output and guesses; -1: all."""
    own, drafts = point.req.token_ids, point.draft_ids
    num_own = len(own) if last_n < 0 else max(0, last_n - len(drafts))
    ids = np.array([*own[max(0, len(own) - num_own) :], *drafts], np.int64)
    return ids if last_n < 0 else ids[-last_n:]


def _with_dry(
    penalised: _Penalised, dry: DryPenalty, point: SamplePoint, vocab_size: int
) -> _Penalised:
    """Each id once: of one that both have, the penalties add up."""
    dry_ids, dry_values = dry.at(point.req.token_ids, point.draft_ids)
    is_known = dry_ids < vocab_size
    all_ids = np.concatenate([penalised.token_ids, dry_ids[is_known]])
    values = np.concatenate([penalised.subtracted, dry_values[is_known]])
    ids, idx_of_id = np.unique(all_ids, return_inverse=True)
    repetition = np.ones(len(ids), np.float32)
    repetition[idx_of_id[: len(penalised.token_ids)]] = penalised.repetition
    subtracted = np.bincount(idx_of_id, values, len(ids)).astype(np.float32)
    return _Penalised(ids, repetition, subtracted)


def _output_counts(point: SamplePoint) -> dict[int, int]:
    counts = point.req.count_outputs()
    if not point.draft_ids:
        return counts
    with_drafts = Counter(counts)
    with_drafts.update(point.draft_ids)
    return with_drafts


def _prompt_ids(req: Req) -> npt.NDArray[np.int64]:
    return np.array(req.token_ids[: req.num_prompt_tokens], np.int64)


def _banned(
    points: Iterable[_RowPoint], vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    pairs = [
        (row, token_id)
        for row, point in points
        for token_id in _banned_ids(point)
        if token_id < vocab_size
    ]
    if not pairs:
        return None
    rows, token_ids = zip(*pairs, strict=True)
    return torch.tensor(rows), torch.tensor(token_ids)


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


def _bias(points: Iterable[_RowPoint], vocab_size: int) -> TokenBias | None:
    parts = [
        (np.full(len(rules.bias_ids), row, np.int64), rules.bias_ids, rules.bias_values)
        for row, point in points
        if (rules := point.req.logit_rules) is not None
    ]
    if not parts:
        return None
    rows, token_ids, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    is_known = token_ids < vocab_size
    rows, token_ids, values = rows[is_known], token_ids[is_known], values[is_known]
    return TokenBias(torch.from_numpy(rows), torch.from_numpy(token_ids), torch.from_numpy(values))


def _allowed(points: Iterable[_RowPoint], vocab_size: int) -> list[tuple[int, torch.Tensor]]:
    return [
        (row, torch.from_numpy(rules.allowed_ids[rules.allowed_ids < vocab_size]))
        for row, point in points
        if (rules := point.req.logit_rules) is not None and len(rules.allowed_ids)
    ]
