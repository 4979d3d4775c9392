"""Logprobs of the tokens of a prompt, chunk by chunk as it is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.request.step_result import SampleError
from worker.engine.sampling.row_logprobs import Alternatives, first_prompt_record, row_logprobs

_SLAB_ROWS = 64  # logits of a whole chunk would be the largest tensor of all


Logits = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, hidden_size] -> [.., num_outputs]


def score_prompts(
    logits_of: Logits, hidden: torch.Tensor, batch: ScheduleBatch
) -> dict[int, bytes | SampleError]:
    """Logprobs of a step's prompt chunks that want them, by run id.

    `hidden` is [num_tokens, hidden_size].
    """
    records: dict[int, bytes | SampleError] = {}
    start = batch.num_plain
    for entry in batch.others:
        if entry.req.num_prompt_top is not None:
            rows = hidden[start : start + entry.num_tokens]
            records[entry.req.run_id] = _score_prompt(logits_of, rows, entry)
        start += entry.num_tokens
    return records


def _score_prompt(
    logits_of: Logits, hidden: torch.Tensor, entry: ScheduledReq
) -> bytes | SampleError:
    """Records of the prompt tokens behind those of this chunk, and of the first token of all.

    `hidden` [num_tokens of the chunk, hidden_size].
    """
    req, num_top = entry.req, entry.req.num_prompt_top
    assert num_top is not None
    asked = Alternatives(num_top, req.sampling.logprob_ids)
    records = [first_prompt_record(req.token_ids[0], asked.num)] if entry.start == 0 else []
    next_ids = req.token_ids[entry.start + 1 : min(entry.end + 1, req.num_prompt_tokens)]
    for start in range(0, len(next_ids), _SLAB_ROWS):
        slab_ids = next_ids[start : start + _SLAB_ROWS]
        logits = logits_of(hidden[start : start + len(slab_ids)]).numpy()
        if not np.isfinite(logits.max(axis=-1)).all():
            return SampleError.NOT_A_NUMBER
        records += [
            row_logprobs(row, token_id, asked)
            for row, token_id in zip(logits, slab_ids, strict=True)
        ]
    return b"".join(records)
