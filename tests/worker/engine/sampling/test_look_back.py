"""Penalties that count only the last tokens of prompt and output."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from tests.worker.engine.sampling.test_sampler import make_req, some_logits
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.sampling.sampler import HostLogits
from worker.engine.sampling.sampling_batch import SamplingBatch

PROMPT, OUTPUT, DRAFTS = [1, 2, 3, 3, 4], [5, 3, 6], [6, 7]
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.5}


def changed(logits: torch.Tensor, point: SamplePoint) -> torch.Tensor:
    batch = SamplingBatch.from_points([point], logits.shape[-1])
    rows = logits[None].clone()
    batch.change(rows, HostLogits())
    return rows[0]


def expected(logits: torch.Tensor, counted: list[int]) -> torch.Tensor:
    """As llama.cpp does it, id by id."""
    logits = logits.clone()
    for token_id, count in Counter(counted).items():
        value = logits[token_id]
        logits[token_id] = value / 1.5 if value > 0 else value * 1.5
        logits[token_id] -= 0.5 * count + 0.25
    return logits


@pytest.mark.parametrize(
    ("last_n", "drafts", "counted"),
    [
        (4, [], [4, 5, 3, 6]),
        (4, DRAFTS, [3, 6, 6, 7]),
        (1, DRAFTS, [7]),
        (3, [9, *DRAFTS, 7], [6, 7, 7]),
        (100, [], PROMPT + OUTPUT),
        (-1, DRAFTS, PROMPT + OUTPUT + DRAFTS),
    ],
)
def test_so_many_of_the_last_tokens_count(
    last_n: int, drafts: list[int], counted: list[int]
) -> None:
    (logits,) = some_logits(1)
    req = make_req(PROMPT, OUTPUT, penalty_last_n=last_n, **PENALTIES)
    point = SamplePoint(req, req.num_tokens + len(drafts), drafts)
    assert torch.allclose(changed(logits, point), expected(logits, counted))


def test_without_it_presence_and_frequency_count_the_output_alone() -> None:
    (logits,) = some_logits(1)
    fields: dict[str, Any] = {"presence_penalty": 1.0}
    whole = make_req(PROMPT, OUTPUT, penalty_last_n=-1, **fields)
    usual = make_req(PROMPT, OUTPUT, **fields)
    lowered = [
        (changed(logits, SamplePoint.after(req)) < logits).nonzero()[:, 0].tolist()
        for req in (whole, usual)
    ]
    assert lowered == [[1, 2, 3, 4, 5, 6], [3, 5, 6]]
