"""Chooses one token for each row of logits."""

from __future__ import annotations

import numpy as np
import torch

from worker.engine.sampling.counter_hash import CounterHash
from worker.engine.sampling.kept_set import kept_threshold
from worker.engine.sampling.sampling_batch import Penalties, SamplingBatch

GREEDY_TEMPERATURE = 1e-5  # up to here noise decides nothing, and division may overflow


class Sampler:
    """Penalties, then temperature, then min_p, top_k and top_p, then the largest noisy logit.

    The noise is Gumbel's, from a `CounterHash`: the token with the largest logit / T + noise is a
    draw from the softmax, and the same draw wherever and with whomever the row is computed.
    """

    def __init__(self, vocab_size: int) -> None:
        self._hash = CounterHash(vocab_size)

    def forward(self, logits: torch.Tensor, batch: SamplingBatch) -> list[int | None]:
        """`logits` [num_rows, vocab_size] float32, overwritten. None for a row with no numbers."""
        # A sum is finite only when all that went into it is.
        is_finite = torch.isfinite(logits.sum(dim=-1)).tolist()
        if batch.penalties is not None:
            _apply_penalties(logits, batch.penalties)
        if batch.banned is not None:
            logits[batch.banned] = -torch.inf
        token_ids = torch.argmax(logits, dim=-1).tolist()
        random_rows = [
            row
            for row, is_row_finite in enumerate(is_finite)
            if is_row_finite and batch.temperature[row] > GREEDY_TEMPERATURE
        ]
        if random_rows:
            for row, token_id in zip(
                random_rows, self._draw(logits, batch, random_rows), strict=True
            ):
                token_ids[row] = token_id
        return [
            token_id if is_row_finite else None
            for token_id, is_row_finite in zip(token_ids, is_finite, strict=True)
        ]

    def _draw(self, logits: torch.Tensor, batch: SamplingBatch, rows: list[int]) -> list[int]:
        scaled = logits[rows]
        scaled /= torch.from_numpy(batch.temperature[rows])[:, None]
        thresholds = kept_threshold(scaled, batch.top_k[rows], batch.top_p[rows], batch.min_p[rows])
        return [
            self._draw_row(row_logits, threshold, batch.seeds[row], batch.positions[row])
            for row, row_logits, threshold in zip(
                rows, scaled.numpy(), thresholds.numpy(), strict=True
            )
        ]

    def _draw_row(
        self, logits: np.typing.NDArray[np.float32], threshold: np.float32, seed: int, position: int
    ) -> int:
        kept_ids = np.flatnonzero(logits >= threshold)
        noisy = self._hash.gumbel(seed, position, kept_ids)
        noisy += logits[kept_ids]
        return int(kept_ids[np.argmax(noisy)])


def _apply_penalties(logits: torch.Tensor, penalties: Penalties) -> None:
    pairs = (penalties.rows, penalties.token_ids)
    values = logits[pairs]
    values = torch.where(values > 0, values / penalties.repetition, values * penalties.repetition)
    logits[pairs] = values - penalties.subtracted
