from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from shared.protocol import SamplingParams
from worker.engine.req import Req
from worker.engine.sampling.sample_point import SamplePoint
from worker.engine.sampling.sampler import Sampler
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine.stop_check import StopCheck

VOCAB_SIZE = 40
STOP_CHECK = StopCheck([0], 10**6)


def make_req(
    prompt_ids: list[int] | None = None, output_ids: list[int] | None = None, **sampling: Any
) -> Req:
    params = SamplingParams(**({"max_tokens": 100, "seed": 1} | sampling))
    return Req(1, prompt_ids or [1], output_ids or [], params, 0, 0, STOP_CHECK)


def sample(logits: torch.Tensor, *reqs: Req) -> list[int | None]:
    batch = SamplingBatch.from_points([*map(SamplePoint.after, reqs)], logits.shape[-1])
    return Sampler(logits.shape[-1]).forward(logits.clone(), batch)


def some_logits(num_rows: int, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 2


def draw_counts(logits: torch.Tensor, num_draws: int, **sampling: Any) -> Any:
    """The same row with another seed each time."""
    reqs = [make_req(seed=seed, **sampling) for seed in range(num_draws)]
    token_ids = sample(logits.expand(num_draws, -1), *reqs)
    return np.bincount([each for each in token_ids if each is not None], minlength=len(logits))


def assert_drawn_from(counts: Any, probs: Any) -> None:
    """Chi-square, at five standard deviations; nothing from outside the kept set."""
    kept = probs > 0
    assert counts[~kept].sum() == 0
    expected = probs[kept] * counts.sum()
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    freedom = kept.sum() - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom)


def reference_probs(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Any:
    """Token by token, in double precision."""
    scaled = logits.double().numpy() / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    probs[probs < min_p * probs.max()] = 0
    order = np.argsort(-probs)
    if top_k:
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    mass = 0.0
    for token_id in order:
        if mass >= top_p:
            probs[token_id] = 0
        mass += probs[token_id]
    return probs / probs.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 1},
        {"top_p": 0.001},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling: dict[str, Any]) -> None:
    logits = some_logits(1)[0]
    counts = draw_counts(logits, 5_000, **sampling)
    assert_drawn_from(counts, reference_probs(logits, **sampling))


def test_positions_draw_independently() -> None:
    logits = some_logits(1)[0]
    num_draws = 5_000
    reqs = [make_req(output_ids=[1] * (idx % 500), seed=idx // 500) for idx in range(num_draws)]
    counts = np.bincount(sample(logits.expand(num_draws, -1), *reqs), minlength=VOCAB_SIZE)  # type: ignore[arg-type]
    assert_drawn_from(counts, reference_probs(logits))


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = some_logits(30, 3000)
    params: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 7, "min_p": 0.01},
        {"temperature": 0.0},
        {"temperature": 0.6, "repetition_penalty": 1.3},
    ]
    reqs = [make_req([1, 2, 3], [4, 5], seed=idx, **params[idx % 5]) for idx in range(30)]
    together = sample(logits, *reqs)
    alone = [sample(logits[idx : idx + 1], req)[0] for idx, req in enumerate(reqs)]
    assert together == alone


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, 7] = logits[1, [9, 12]] = 1.0
    reqs = [make_req(temperature=0.0), make_req(temperature=0.0)]
    assert sample(logits, *reqs) == [7, 9]


def test_a_tiny_temperature_is_greedy() -> None:
    logits = some_logits(1)
    assert sample(logits, make_req(temperature=1e-9)) == [int(logits.argmax())]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_fails_alone(bad: float) -> None:
    logits = some_logits(3)
    good = sample(logits, make_req(), make_req(), make_req(temperature=0.0))
    logits[1, 5] = bad
    reqs = [make_req(), make_req(), make_req(temperature=0.0)]
    assert sample(logits, *reqs) == [good[0], None, good[2]]


def naive_penalties(logits: list[float], req: Req) -> list[float]:
    params = req.sampling
    prompt = req.token_ids[: req.num_prompt_tokens].tolist()
    output = req.token_ids[req.num_prompt_tokens :].tolist()
    penalised = []
    for token_id, logit in enumerate(logits):
        if token_id in prompt or token_id in output:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        logit -= params.frequency_penalty * output.count(token_id)
        logit -= params.presence_penalty * (token_id in output)
        penalised.append(logit)
    return penalised


@pytest.mark.parametrize(
    "sampling",
    [
        {"presence_penalty": 0.7},
        {"frequency_penalty": -0.4},
        {"repetition_penalty": 1.5},
        {"presence_penalty": -1.1, "frequency_penalty": 0.9, "repetition_penalty": 0.8},
    ],
    ids=str,
)
def test_penalties_agree_with_a_naive_reference(
    sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.engine.sampling import sampler

    logits = some_logits(3)
    reqs = [
        make_req([1, 2, 3, 3, 99], [3, 4, 4, 5, 99, 5, 5], **sampling),
        make_req([1, 2], [6]),
        make_req([7, 7], [], **sampling),
    ]
    batch = SamplingBatch.from_points([*map(SamplePoint.after, reqs)], VOCAB_SIZE)
    assert batch.penalties is not None
    ours = logits.clone()
    sampler._apply_penalties(ours, batch.penalties)
    naive = [naive_penalties(row, req) for row, req in zip(logits.tolist(), reqs, strict=True)]
    torch.testing.assert_close(ours, torch.tensor(naive), rtol=1e-6, atol=1e-6)


def test_counts_follow_the_output() -> None:
    req = make_req([1], [2, 2])
    assert req.count_outputs() == {2: 2}
    req.append(3)
    req.append(2)
    assert req.count_outputs() == {2: 3, 3: 1}


def test_min_tokens_bans_what_would_end_it() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 0] = 9.0  # eos
    logits[:, 5] = 8.0  # a stop token
    logits[:, 6] = 7.0
    stops = {"temperature": 0.0, "stop_token_ids": (5, 400), "min_tokens": 2}
    early, late = make_req([1], [3], **stops), make_req([1], [3, 3], **stops)
    assert sample(logits, early, late) == [6, 0]


def test_top_p_beyond_the_sorted_candidates() -> None:
    logits = torch.zeros(1, 5000)  # uniform: top_p 0.5 would keep half, ties keep all
    logits += torch.linspace(0, 1e-3, 5000)
    counts = np.bincount(
        sample(logits.expand(3000, -1), *(make_req(seed=idx, top_p=0.5) for idx in range(3000))),  # type: ignore[arg-type]
        minlength=5000,
    )
    assert counts[:2400].sum() == 0
    assert (counts[2600:] > 0).sum() > 1000
