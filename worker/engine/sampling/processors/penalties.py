"""Penalties for tokens that a request has already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.request.dry_penalty import DryPenalty
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
class Penalised(TokenPairs):
    """Tokens that a request has already, and what they cost it."""

    repetition: torch.Tensor  # [num_pairs] float32, of the row; 1 is none
    subtracted: torch.Tensor  # [num_pairs] float32, frequency and presence penalty and DRY together

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        pairs = place.put(self.rows), place.put(self.token_ids)
        values, repetition = logits[pairs], place.put(self.repetition)
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits.index_put_(pairs, values - place.put(self.subtracted))


class Penalties:
    """Repetition, frequency and presence penalty, and DRY."""

    def wants(self, req: Req) -> bool:
        return req.has_penalties

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        parts = [(row, _penalised(point, vocabulary.size)) for row, point in points]
        rows = np.repeat([row for row, _ in parts], [len(part.token_ids) for _, part in parts])
        token_ids, repetition, subtracted = (
            torch.from_numpy(np.concatenate(columns))
            for columns in zip(*(part for _, part in parts), strict=True)
        )
        return Penalised(torch.from_numpy(rows), token_ids, repetition, subtracted)


class _OfRow(NamedTuple):
    """The penalties of one row, as `Penalised` has them."""

    token_ids: npt.NDArray[np.int64]  # each once
    repetition: npt.NDArray[np.float32]
    subtracted: npt.NDArray[np.float32]


def _penalised(point: SamplePoint, vocab_size: int) -> _OfRow:
    """Repetition and DRY count prompt and output, the other two the output alone."""
    req, params = point.req, point.req.sampling
    output_ids, counts = _counted(point)
    subtracted = params.frequency_penalty * counts + np.float32(params.presence_penalty)
    if params.repetition_penalty != 1.0 and params.penalty_last_n is None:
        only_in_prompt = np.setdiff1d(_prompt_ids(req), output_ids)
        output_ids = np.concatenate([output_ids, only_in_prompt])
        subtracted = np.concatenate([subtracted, np.zeros(len(only_in_prompt), np.float32)])
    is_known = output_ids < vocab_size
    penalised = _OfRow(
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
    """The last ids of prompt, output and guesses; -1: all."""
    own, drafts = point.req.token_ids, point.draft_ids
    num_own = len(own) if last_n < 0 else max(0, last_n - len(drafts))
    ids = np.array([*own[max(0, len(own) - num_own) :], *drafts], np.int64)
    return ids if last_n < 0 else ids[-last_n:]


def _with_dry(penalised: _OfRow, dry: DryPenalty, point: SamplePoint, vocab_size: int) -> _OfRow:
    """Each id once: of one that both have, the penalties add up."""
    dry_ids, dry_values = dry.at(point.req.token_ids, point.draft_ids)
    is_known = dry_ids < vocab_size
    all_ids = np.concatenate([penalised.token_ids, dry_ids[is_known]])
    values = np.concatenate([penalised.subtracted, dry_values[is_known]])
    ids, idx_of_id = np.unique(all_ids, return_inverse=True)
    repetition = np.ones(len(ids), np.float32)
    repetition[idx_of_id[: len(penalised.token_ids)]] = penalised.repetition
    subtracted = np.bincount(idx_of_id, values, len(ids)).astype(np.float32)
    return _OfRow(ids, repetition, subtracted)


def _output_counts(point: SamplePoint) -> dict[int, int]:
    counts = point.req.count_outputs()
    if not point.draft_ids:
        return counts
    with_drafts = Counter(counts)
    with_drafts.update(point.draft_ids)
    return with_drafts


def _prompt_ids(req: Req) -> npt.NDArray[np.int64]:
    return np.array(req.token_ids[: req.num_prompt_tokens], np.int64)
