"""Chooses one token for each row of logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.grammar.grammar_matcher import Bitmask
from worker.engine.request.step_result import SampleError
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE, GumbelMax
from worker.engine.sampling.kept_set import kept_threshold
from worker.engine.sampling.row_logprobs import row_logprobs
from worker.engine.sampling.sampling_batch import SamplingBatch

FloatRow = npt.NDArray[np.float32]  # [vocab_size]


class HostLogits:
    """A `LogitPlace`: what is put there is there already."""

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def forbid(self, logits: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
        is_forbidden = torch.from_numpy(bits[:, : logits.shape[1]] == 0)
        for row, is_forbidden_here in zip(rows, is_forbidden, strict=True):
            logits[row].masked_fill_(is_forbidden_here, -torch.inf)


class Samples(NamedTuple):
    """What a step chose, row by row."""

    token_ids: list[int | SampleError]
    logprobs: list[bytes]  # b"" where none were asked for; empty when no row asks


class Sampler:
    """Changes the logits, then draws.

    Changes come in vLLM's order: biases, masks, penalties. A draw is greedy, or: temperature, then
    min_p, top_k and top_p, then the largest noisy logit. The noise is Gumbel's, from a
    `CounterHash`: the token with the largest logit / T + noise is a draw from the softmax, and the
    same draw wherever and with whomever the row is computed. `Narrowing` is done with a row before
    that where a threshold cannot say what is kept. Logprobs are of the unchanged logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._gumbel_max = GumbelMax(vocab_size)
        self._place = HostLogits()

    def forward(self, logits: torch.Tensor, batch: SamplingBatch) -> Samples:
        """`logits` [num_rows, vocab_size] float32, overwritten."""
        rows = logits.numpy()
        raw_rows = {row: (rows[row].copy(), asked) for row, asked in batch.params.logprob_rows}
        token_ids = self._choose(logits, batch)
        if not raw_rows:
            return Samples(token_ids, [])
        logprobs = [b""] * len(token_ids)
        for row, (raw_row, asked) in raw_rows.items():
            token_id = token_ids[row]
            if not isinstance(token_id, SampleError):
                logprobs[row] = row_logprobs(raw_row, token_id, asked)
        return Samples(token_ids, logprobs)

    def _choose(self, logits: torch.Tensor, batch: SamplingBatch) -> list[int | SampleError]:
        rows = logits.numpy()
        # Where a row has a NaN, it is its largest.
        likeliest = rows.argmax(axis=-1)
        largest = rows[np.arange(len(rows)), likeliest]
        token_ids: list[int | SampleError] = [
            token_id if is_number else SampleError.NOT_A_NUMBER
            for token_id, is_number in zip(
                likeliest.tolist(), np.isfinite(largest).tolist(), strict=True
            )
        ]
        batch.change(logits, self._place)
        for row in batch.changed_rows:
            if not isinstance(token_ids[row], SampleError):
                token_id = int(rows[row].argmax())
                is_allowed = rows[row, token_id] > -np.inf
                token_ids[row] = token_id if is_allowed else SampleError.NOTHING_ALLOWED
        for row in np.flatnonzero(batch.params.temperature > GREEDY_TEMPERATURE).tolist():
            if not isinstance(token_ids[row], SampleError):
                token_ids[row] = self._draw(rows[row], batch, row)
        return token_ids

    def _draw(self, logits: FloatRow, batch: SamplingBatch, row: int) -> int:
        scaled = logits / batch.params.temperature[row]
        largest = float(scaled.max())
        threshold = kept_threshold(
            scaled,
            largest,
            int(batch.params.top_k[row]),
            float(batch.params.top_p[row]),
            float(batch.params.min_p[row]),
        )
        return self._gumbel_max.draw(
            scaled, largest, threshold, batch.params.seeds[row], batch.positions[row]
        )
