"""Dynamic temperature, typical_p and XTC against a plain reference, and with a resume amidst."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.protocol.sampling import SamplingParams
from tests.worker.engine.sampling.test_sampler import draw_counts, make_req, sample, some_logits
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.request.step_result import SampleError
from worker.engine.sampling.processors.narrowing import Narrowing, narrows, xtc_coin

VOCAB_SIZE = 40
ALWAYS: dict[str, Any] = {"xtc_probability": 1.0}
CASES: list[dict[str, Any]] = [
    {"typical_p": 0.3},
    {"typical_p": 0.95, "temperature": 1.5},
    {"typical_p": 0.6, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {**ALWAYS},
    {**ALWAYS, "xtc_threshold": 0.03, "top_p": 0.8},
    {**ALWAYS, "xtc_threshold": 0.6},
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 1.5, "dynatemp_exponent": 0.4, "temperature": 0.9},
    {"dynatemp_range": 0.3, "typical_p": 0.7, **ALWAYS, "min_p": 0.01, "xtc_threshold": 0.05},
]


def softmax(logits: Any) -> Any:
    probs = np.exp(logits - logits.max())
    return probs / probs.sum()


def entropy(probs: Any) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def reference(logits: torch.Tensor, **fields: Any) -> Any:
    """The probabilities, token by token as the definitions say; XTC's coin has fallen for it."""
    sampling = SamplingParams(max_tokens=1, seed=0, **fields)
    values = logits.double().numpy()
    temperature = sampling.temperature
    if sampling.dynatemp_range > 0:
        low = max(0.0, temperature - sampling.dynatemp_range)
        high = temperature + sampling.dynatemp_range
        evenness = entropy(softmax(values)) / math.log(len(values))
        temperature = low + (high - low) * evenness**sampling.dynatemp_exponent
    probs = softmax(values / temperature)
    probs[probs < sampling.min_p * probs.max()] = 0
    falling = np.argsort(-probs)
    if sampling.top_k:
        probs[falling[sampling.top_k :]] = 0
    probs /= probs.sum()
    if sampling.top_p < 1:
        probs = keep_until(probs, falling, lambda mass: mass >= sampling.top_p)
    if sampling.typical_p < 1:
        expected = entropy(probs)
        far = [abs(-math.log(p) - expected) if p > 0 else math.inf for p in probs]
        probs = keep_until(probs, np.argsort(far), lambda mass: mass > sampling.typical_p)
    if sampling.xtc_probability and sampling.xtc_threshold <= 0.5:
        top = [i for i in np.argsort(-probs) if probs[i] >= sampling.xtc_threshold]
        probs[top[:-1]] = 0
    return probs / probs.sum()


def keep_until(probs: Any, order: Any, is_enough: Any) -> Any:
    kept, mass = np.zeros_like(probs), 0.0
    for token_id in order:
        kept[token_id] = probs[token_id]
        mass += probs[token_id]
        if is_enough(mass):
            break
    return kept / kept.sum()


def narrowed(logits: torch.Tensor, position: int = 1, **fields: Any) -> torch.Tensor:
    sampling = SamplingParams(max_tokens=1, seed=0, **fields)
    assert narrows(sampling)
    return Narrowing.at(sampling, position).narrowed(logits)


def test_another_order_is_taken_and_what_it_does_not_name_does_nothing() -> None:
    """llama.cpp's own: the temperature comes last, and changes no kept set."""
    fields: dict[str, Any] = {"temperature": 1.9, "top_k": 20, "top_p": 0.8, "min_p": 0.05}
    last = ("top_k", "top_p", "min_p", "temperature")
    for logits in some_logits(10, VOCAB_SIZE, seed=4):
        cold = reference(logits, **{**fields, "temperature": 1.0, "min_p": 0.0})
        kept = cold >= 0.05 * cold.max()
        expected = np.where(kept, np.exp(logits.double().numpy() / 1.9), 0)
        probs = softmax(narrowed(logits, **fields, samplers=last).double().numpy())
        assert probs == pytest.approx(expected / expected.sum(), rel=1e-4)
        warm_only = narrowed(logits, **fields, samplers=("temperature",))
        assert torch.equal(warm_only, logits / 1.9)


@pytest.mark.parametrize("fields", CASES, ids=str)
@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
def test_rows_are_the_references(fields: dict[str, Any], scale: float) -> None:
    for logits in some_logits(25, VOCAB_SIZE, seed=3) * scale:
        expected = reference(logits, **fields)
        probs = softmax(narrowed(logits, **fields).double().numpy())
        assert (probs > 0).tolist() == (expected > 0).tolist()
        assert probs == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("scale", [0.001, 1.0, 30.0])
@pytest.mark.parametrize(
    "fields", [{"typical_p": 0.8}, {"typical_p": 0.999, "top_p": 0.9}], ids=str
)
def test_a_large_vocabulary_is_cut_in_the_same_place(scale: float, fields: dict[str, Any]) -> None:
    """All tokens about as far from what is expected, and some as far as can be."""
    for logits in some_logits(3, 20_000, seed=6) * scale:
        expected = reference(logits, **fields)
        assert torch.equal(narrowed(logits, **fields) > -torch.inf, torch.tensor(expected > 0))


def test_draws_follow_them() -> None:
    fields = {"typical_p": 0.6, "temperature": 1.3, "dynatemp_range": 0.4}
    (logits,) = some_logits(1, VOCAB_SIZE)
    shares = draw_counts(logits, 4000, **fields) / 4000
    assert np.abs(shares - reference(logits, **fields)).max() < 0.05
    assert shares[reference(logits, **fields) == 0].sum() == 0


def test_the_coin_is_one_of_seed_and_position() -> None:
    coins = [xtc_coin(seed, position) for seed in range(40) for position in range(100)]
    assert len(set(coins)) == len(coins)
    for probability in (0.1, 0.5, 0.9):
        share = sum(coin <= probability for coin in coins) / len(coins)
        assert share == pytest.approx(probability, abs=0.03)
    sampling = SamplingParams(max_tokens=1, seed=7, xtc_probability=0.5)
    told = [Narrowing.at(sampling, position).excludes_top for position in range(200)]
    assert told == [xtc_coin(7, position) <= 0.5 for position in range(200)]
    assert len(set(told)) == 2


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = some_logits(6, 500, seed=9)
    reqs = [make_req(seed=idx, output_ids=[2] * idx, **CASES[idx]) for idx in range(6)]
    together = sample(logits, *reqs)
    assert together == [sample(row[None], req)[0] for row, req in zip(logits, reqs, strict=True)]
    plain = [make_req(seed=50 + idx) for idx in range(6)]
    mixed = [req for pair in zip(reqs, plain, strict=True) for req in pair]
    assert sample(logits.repeat_interleave(2, 0), *mixed)[::2] == together


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_rows_without_a_token_to_draw_are_told(fields: dict[str, Any]) -> None:
    rows = some_logits(4, 50)
    rows[0, 7] = torch.nan
    rows[1, 7] = torch.inf
    rows[2, :] = -torch.inf
    rows[3, :] = -torch.inf
    rows[3, 9] = 1.0
    bad, nothing = SampleError.NOT_A_NUMBER, SampleError.NOTHING_ALLOWED
    told = sample(rows, *(make_req(**fields) for _ in rows))
    assert told[:2] == [bad, bad]
    assert told[2] in (bad, nothing)
    assert told[3] == 9
    (banned,) = sample(rows[3:], make_req(**fields, allowed_token_ids=(4,)))
    assert banned is nothing


def test_greedy_stays_greedy() -> None:
    logits = some_logits(5, 50)
    reqs = [make_req(temperature=0.0, **ALWAYS, typical_p=0.2) for _ in logits]
    assert sample(logits, *reqs) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.002},
        {"dynatemp_range": 0.8},
    ],
    ids=str,
)
def test_a_resumed_run_goes_on_with_the_same_tokens(
    tiny_llama: Path, fields: dict[str, Any]
) -> None:
    prompt = random_prompt(20, seed=1)

    def run(output: list[int], **more: Any) -> list[int]:
        sampling = {"temperature": 0.8, "seed": 11, "ignore_eos": True, **more}
        rig = Rig(tiny_llama)
        return list(rig.run(make_add(1, prompt, output, max_tokens=40, **sampling))[1])

    whole = run([], **fields)
    assert whole != run([])
    for num_known in (1, 17, 39):
        rest = run(whole[:num_known], **fields)
        assert (rest if len(rest) == 40 else whole[:num_known] + rest) == whole


def test_every_field_alone_needs_the_level() -> None:
    needing: list[dict[str, Any]] = [
        {"typical_p": 0.9},
        {"xtc_probability": 0.1},
        {"dynatemp_range": 0.1},
        {"samplers": ("top_k", "temperature")},
        {"penalty_last_n": 64},
    ]
    for fields in needing:
        assert SamplingParams(max_tokens=1, seed=0, **fields).needed_level == 2
    off: dict[str, Any] = {"xtc_threshold": 0.3, "dynatemp_exponent": 2.0}
    for some in itertools.chain([{}, off]):
        assert SamplingParams(max_tokens=1, seed=0, **some).needed_level == 1
