from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from shared.protocol.logprobs import TokenLogprob, num_top_of, unpack_logprobs
from tests.worker.engine_fakes import make_add
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.request.step_result import SampleError
from worker.engine.request.stop_check import StopCheck
from worker.engine.sampling.counter_hash import CounterHash
from worker.engine.sampling.kept_set import kept_threshold
from worker.engine.sampling.processors.penalties import Penalised
from worker.engine.sampling.sampler import HostLogits, Sampler
from worker.engine.sampling.sampling_batch import SamplingBatch

VOCAB_SIZE = 40
STOP_CHECK = StopCheck([0], 10**6)


def make_req(
    prompt_ids: list[int] | None = None, output_ids: list[int] | None = None, **sampling: Any
) -> Req:
    params = {"max_tokens": 100, "seed": 1, "temperature": 1.0} | sampling
    command = make_add(1, prompt_ids or [1], output_ids or [], **params)
    return Req(Arrival(command, 0), STOP_CHECK)


def sample(logits: torch.Tensor, *reqs: Req) -> list[int | SampleError]:
    batch = SamplingBatch.from_points([*map(SamplePoint.after, reqs)], logits.shape[-1])
    return Sampler(logits.shape[-1]).forward(logits.clone(), batch).token_ids


def sample_logprobs(logits: torch.Tensor, *reqs: Req) -> list[TokenLogprob | None]:
    batch = SamplingBatch.from_points([SamplePoint.after(req) for req in reqs], logits.shape[-1])
    records = Sampler(logits.shape[-1]).forward(logits.clone(), batch).logprobs
    return [
        unpack_logprobs(record, num_top_of(len(record)))[0] if record else None
        for record in records
    ]


def some_logits(num_rows: int, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 2


def draw_counts(logits: torch.Tensor, num_draws: int, **sampling: Any) -> Any:
    """The same row with another seed each time."""
    reqs = [make_req(seed=seed, **sampling) for seed in range(num_draws)]
    token_ids = sample(logits.expand(num_draws, -1), *reqs)
    return np.bincount([each for each in token_ids if isinstance(each, int)], minlength=len(logits))


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_number_fails_alone(bad: float) -> None:
    logits = some_logits(3)
    good = sample(logits, make_req(), make_req(), make_req(temperature=0.0))
    logits[1, 5] = bad
    reqs = [make_req(), make_req(), make_req(temperature=0.0)]
    assert sample(logits, *reqs) == [good[0], SampleError.NOT_A_NUMBER, good[2]]


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
def test_penalties_agree_with_a_naive_reference(sampling: dict[str, Any]) -> None:
    logits = some_logits(3)
    reqs = [
        make_req([1, 2, 3, 3, 99], [3, 4, 4, 5, 99, 5, 5], **sampling),
        make_req([1, 2], [6]),
        make_req([7, 7], [], **sampling),
    ]
    batch = SamplingBatch.from_points([*map(SamplePoint.after, reqs)], VOCAB_SIZE)
    assert [type(change) for change in batch.changes] == [Penalised]
    ours = logits.clone()
    batch.change(ours, HostLogits())
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


def test_impossible_tokens_are_never_drawn() -> None:
    logits = some_logits(1)
    logits[0, 5:] = -torch.inf
    assert set(sample(logits.expand(300, -1), *(make_req(seed=idx) for idx in range(300)))) <= set(
        range(5)
    )
    assert sample(torch.full((1, VOCAB_SIZE), -torch.inf), make_req()) == [SampleError.NOT_A_NUMBER]


@pytest.mark.parametrize("temperature", [0.02, 1.0, 30.0], ids=["peaked", "as it is", "flat"])
@pytest.mark.parametrize(
    "kept",
    [{}, {"top_p": 0.9}, {"min_p": 1e-4}, {"top_k": 4000}, {"top_k": 30, "top_p": 0.5}],
    ids=str,
)
def test_short_cuts_change_no_draw(temperature: float, kept: dict[str, Any]) -> None:
    vocab_size = 9000
    logits = some_logits(1, vocab_size)[0]
    scaled = logits.numpy() / np.float32(temperature)
    is_kept = reference_probs(logits, temperature, **kept) > 0
    counter_hash = CounterHash(vocab_size)
    for seed in range(20):
        noisy = np.where(
            is_kept, scaled + counter_hash.gumbel(seed, 1, np.arange(vocab_size)), -np.inf
        )
        req = make_req(seed=seed, temperature=temperature, **kept)
        assert sample(logits[None], req) == [int(noisy.argmax())]


def test_a_bias_moves_the_choice() -> None:
    logits = some_logits(2)
    biased = make_req(temperature=0.0, logit_bias=((3, 60.0), (4, 49.0), (5, -100.0)))
    assert sample(logits, biased, make_req(temperature=0.0)) == [3, int(logits[1].argmax())]
    ban = make_req(temperature=0.0, logit_bias=((int(logits[0].argmax()), -100.0),))
    assert sample(logits[:1], ban) == [int(logits[0].topk(2).indices[1])]


def test_draws_follow_a_biased_distribution() -> None:
    logits = some_logits(1)[0]
    bias = ((2, 1.5), (7, -2.0), (11, 3.0))
    changed = logits.clone()
    for token_id, value in bias:
        changed[token_id] += value
    counts = draw_counts(logits, 5_000, logit_bias=bias)
    assert_drawn_from(counts, reference_probs(changed))


def test_only_allowed_tokens_are_drawn_in_proportion() -> None:
    logits = some_logits(1)[0]
    allowed = (4, 9, 16, 25, 39)
    probs = reference_probs(logits)
    probs[[each for each in range(VOCAB_SIZE) if each not in allowed]] = 0
    counts = draw_counts(logits, 5_000, allowed_token_ids=allowed)
    assert_drawn_from(counts, probs / probs.sum())


def test_a_bad_word_never_comes_out_whole() -> None:
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 7], logits[:, 8], logits[:, 9] = 3.0, 2.0, 1.0
    bad: dict[str, Any] = {"temperature": 0.0, "bad_words": ((5, 6, 7), (5, 6, 8), (8,), (6, 3))}
    reqs = [
        make_req([1], [5, 6], **bad),  # 7 and 8 would complete a word
        make_req([5, 6], [], **bad),  # the prompt begins no word
        make_req([1], [9, 6], **bad),
        make_req([5], [6], **bad),  # half of it is in the prompt
    ]
    assert sample(logits, *reqs) == [9, 7, 7, 7]


def test_guesses_count_as_output_for_bad_words() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[:, 7], logits[:, 9] = 3.0, 1.0
    req = make_req([1], [5], temperature=0.0, bad_words=((5, 6, 7),))
    batch = SamplingBatch.from_points([SamplePoint(req, 3, [6])], VOCAB_SIZE)
    assert Sampler(VOCAB_SIZE).forward(logits, batch).token_ids == [9]


def test_biases_come_before_masks_and_masks_before_penalties() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 3] = 1.0
    # A repetition penalty of 2 halves what the bias has made: 1 + 7 = 8 -> 4, above 3.5.
    penalised: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 2.0}
    bias = ((3, 7.0), (4, 3.5), (5, 90.0))
    req = make_req([3], [], logit_bias=bias, allowed_token_ids=(3, 4, 6), **penalised)
    assert sample(logits, req) == [3]
    req = make_req([3], [], logit_bias=((3, 5.9), *bias[1:]), allowed_token_ids=(3, 4), **penalised)
    assert sample(logits, req) == [4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_left_fails_alone(temperature: float) -> None:
    logits = some_logits(3)
    good = sample(logits, make_req(), make_req(), make_req())
    impossible = make_req(temperature=temperature, allowed_token_ids=(4, 5), bad_words=((4,), (5,)))
    assert sample(logits, make_req(), impossible, make_req()) == [
        good[0],
        SampleError.NOTHING_ALLOWED,
        good[2],
    ]


def test_logprobs_are_of_the_unchanged_logits() -> None:
    logits = some_logits(3, 500)
    changed: dict[str, Any] = {
        "temperature": 0.3,
        "repetition_penalty": 1.7,
        "logit_bias": ((9, 60.0),),
        "top_k": 3,
    }
    reqs = [make_req([1, 2], [3], logprobs=5, **changed), make_req(), make_req(logprobs=0)]
    first, second, third = sample_logprobs(logits, *reqs)
    reference = logits.double().log_softmax(-1)
    assert second is None
    assert first is not None
    assert first.token_id == 9
    assert first.logprob == pytest.approx(float(reference[0, 9]), abs=1e-5)
    assert first.rank == 1 + int((logits[0] > logits[0, 9]).sum())
    values, ids = reference[0].topk(5)
    assert [token_id for token_id, _ in first.top] == ids.tolist()
    assert [logprob for _, logprob in first.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert third is not None
    assert third.top == ()
    assert [third.token_id] == sample(logits, *reqs)[2:]


def test_logprobs_do_not_depend_on_the_batch() -> None:
    logits = some_logits(12, 3000)
    reqs = [make_req(seed=idx, logprobs=idx % 4, top_p=0.9) for idx in range(12)]
    together = sample_logprobs(logits, *reqs)
    alone = [sample_logprobs(logits[idx : idx + 1], req)[0] for idx, req in enumerate(reqs)]
    assert together == alone


def test_of_equal_alternatives_the_lower_id_comes_first() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [30, 20, 10]] = 1.0
    (record,) = sample_logprobs(logits, make_req(temperature=0.0, logprobs=5))
    assert record is not None
    assert [token_id for token_id, _ in record.top] == [10, 20, 30, 0, 1]
    assert record.rank == 1


def test_a_failed_row_has_no_logprobs() -> None:
    logits = some_logits(2)
    logits[0, 3] = math.nan
    assert sample_logprobs(logits, make_req(logprobs=2), make_req(logprobs=2))[0] is None


def test_a_row_without_rules_costs_no_change() -> None:
    batch = SamplingBatch.from_points([SamplePoint.after(make_req(top_p=0.5, top_k=3))], VOCAB_SIZE)
    assert batch.changed_rows == []


@pytest.mark.parametrize(
    "kept",
    [{"min_p": 0.1}, {"top_p": 0.6}, {"top_k": 9}, {"min_p": 0.02, "top_k": 30, "top_p": 0.9}],
    ids=str,
)
def test_the_kept_set_is_the_references_to_the_token(kept: dict[str, Any]) -> None:
    limits: dict[str, Any] = {"min_p": 0.0, "top_p": 1.0, "top_k": 0} | kept
    for logits in some_logits(60, 300, seed=4):
        threshold = kept_threshold(logits.numpy(), float(logits.max()), **limits)
        expected = reference_probs(logits, **kept) > 0
        assert (logits.numpy() >= np.float32(threshold)).tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_the_temperature_is_exact_where_few_tokens_compete(temperature: float) -> None:
    logits = torch.tensor([0.0, 0.5, 1.0, 1.5])
    counts = draw_counts(logits, 20_000, temperature=temperature)
    assert_drawn_from(counts, reference_probs(logits, temperature))
