"""The sampling parameters of one step's rows, as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.req import Req
from worker.engine.sampling.sample_point import SamplePoint


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalised tokens, one entry for each pair of row and token id."""

    rows: torch.Tensor  # [num_pairs] int64
    token_ids: torch.Tensor  # [num_pairs] int64
    repetition: torch.Tensor  # [num_pairs] float32, of the row; 1 is none
    subtracted: torch.Tensor  # [num_pairs] float32, frequency and presence penalty together


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to choose one token for each row of logits. Host memory; numpy where rows are few."""

    temperature: npt.NDArray[np.float32]  # [num_rows], 0 is greedy
    top_k: npt.NDArray[np.int64]  # [num_rows], 0 is off
    top_p: npt.NDArray[np.float32]  # [num_rows]
    min_p: npt.NDArray[np.float32]  # [num_rows]
    seeds: list[int]  # [num_rows], 64 bits
    positions: list[int]  # [num_rows], of the token to be chosen, prompt included
    penalties: Penalties | None
    banned: tuple[torch.Tensor, torch.Tensor] | None  # rows and token ids, [num_pairs] int64 each

    @classmethod
    def from_points(cls, points: Sequence[SamplePoint], vocab_size: int) -> SamplingBatch:
        params = [point.req.sampling for point in points]
        return cls(
            temperature=np.array([each.temperature for each in params], np.float32),
            top_k=np.array([each.top_k for each in params], np.int64),
            top_p=np.array([each.top_p for each in params], np.float32),
            min_p=np.array([each.min_p for each in params], np.float32),
            seeds=[each.seed for each in params],
            positions=[point.position for point in points],
            penalties=_penalties(points, vocab_size),
            banned=_banned(points, vocab_size),
        )


def _penalties(points: Sequence[SamplePoint], vocab_size: int) -> Penalties | None:
    parts = [
        _penalised(row, point, vocab_size)
        for row, point in enumerate(points)
        if _has_penalty(point.req)
    ]
    if not parts:
        return None
    rows, token_ids, repetition, subtracted = (
        torch.from_numpy(np.concatenate(columns)) for columns in zip(*parts, strict=True)
    )
    return Penalties(rows, token_ids, repetition, subtracted)


def _has_penalty(req: Req) -> bool:
    params = req.sampling
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


def _penalised(
    row: int, point: SamplePoint, vocab_size: int
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
]:
    """Repetition counts prompt and output, the other two the output alone."""
    req, params = point.req, point.req.sampling
    output_counts = _output_counts(point)
    output_ids = np.fromiter(output_counts, np.int64, len(output_counts))
    counts = np.fromiter(output_counts.values(), np.float32, len(output_counts))
    subtracted = params.frequency_penalty * counts + np.float32(params.presence_penalty)
    if params.repetition_penalty != 1.0:
        only_in_prompt = np.setdiff1d(_prompt_ids(req), output_ids)
        output_ids = np.concatenate([output_ids, only_in_prompt])
        subtracted = np.concatenate([subtracted, np.zeros(len(only_in_prompt), np.float32)])
    is_known = output_ids < vocab_size
    output_ids, subtracted = output_ids[is_known], subtracted[is_known].astype(np.float32)
    num_ids = len(output_ids)
    repetition = np.full(num_ids, params.repetition_penalty, np.float32)
    return np.full(num_ids, row, np.int64), output_ids, repetition, subtracted


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
    points: Sequence[SamplePoint], vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Until it has min_tokens, a request may not choose a token that would end it."""
    pairs = [
        (row, token_id)
        for row, point in enumerate(points)
        if point.num_output_tokens < point.req.sampling.min_tokens
        for token_id in point.req.stop_token_ids
        if token_id < vocab_size
    ]
    if not pairs:
        return None
    rows, token_ids = zip(*pairs, strict=True)
    return torch.tensor(rows), torch.tensor(token_ids)
