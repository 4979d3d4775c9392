"""DRY against a plain reference of llama.cpp's rules, step by step, with drafts and a resume."""

from __future__ import annotations

import array
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.protocol.sampling import SamplingParams, SequenceBreaker
from shared.protocol.token_ids import pack_token_ids
from tests.worker.engine.sampling.test_sampler import make_req, sample, some_logits
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.request.dry_penalty import DryPenalty, suffix_repeats

CASES: list[dict[str, Any]] = [
    {},
    {"dry_allowed_length": 0},
    {"dry_allowed_length": 1, "dry_base": 1.0},
    {"dry_penalty_last_n": 9},
    {"dry_penalty_last_n": 2, "dry_allowed_length": 1},
    {"breakers": {(): [2]}},
    {"breakers": {(3, 1): [0, 2], (): [4]}, "dry_allowed_length": 1},
]


def breakers(tails: dict[tuple[int, ...], list[int]]) -> tuple[SequenceBreaker, ...]:
    return tuple(SequenceBreaker(pack_token_ids(heads), tail) for tail, heads in tails.items())


def make_params(**fields: Any) -> SamplingParams:
    tails = fields.pop("breakers", {})
    given = {"dry_multiplier": 0.8, **fields}
    return SamplingParams(max_tokens=100, seed=1, dry_breakers=breakers(tails), **given)


def penalties(dry: DryPenalty, tokens: list[int], drafts: list[int]) -> dict[int, float]:
    ids, values = dry.at(array.array("I", tokens), drafts)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def reference(params: SamplingParams, tails: Any, tokens: list[int]) -> dict[int, float]:
    """Each place before the last token, one after the other."""
    window = tokens if params.dry_penalty_last_n < 0 else tokens[-params.dry_penalty_last_n :]
    sequences = [[head, *tail] for tail, heads in tails.items() for head in heads]
    ends = [
        end
        for end in range(1, len(tokens) + 1)
        if any(tokens[max(0, end - len(each)) : end] == each for each in sequences)
    ]
    limit = min(len(window), len(tokens) - max(ends, default=0))
    allowed = params.dry_allowed_length
    longest: dict[int, int] = {}
    for end in range(1, len(window)):
        length = 0
        while length < min(end, limit) and window[end - 1 - length] == window[-1 - length]:
            length += 1
        if length >= allowed and limit >= allowed and len(window) > allowed:
            longest[window[end]] = max(length, longest.get(window[end], 0))
    return {
        token_id: params.dry_multiplier * params.dry_base ** (length - allowed)
        for token_id, length in longest.items()
        if token_id not in tails.get((), ())
    }


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_penalties_are_the_references_at_each_step(fields: dict[str, Any]) -> None:
    tails, params = fields.get("breakers", {}), make_params(**fields)
    rng = random.Random(5)
    for num_prompt in (1, 7, 30):
        dry, tokens = DryPenalty(params), [rng.randrange(5) for _ in range(num_prompt)]
        for _ in range(40):
            drafts = [rng.randrange(5) for _ in range(rng.randrange(4))]
            expected = reference(params, tails, tokens + drafts)
            assert penalties(dry, tokens, drafts) == pytest.approx(expected)
            tokens += [rng.randrange(5) for _ in range(rng.randrange(3))]


def test_a_repetition_is_dearer_the_longer_it_is() -> None:
    dry = DryPenalty(make_params())
    tokens = [5, 6, 7, 8, 9, 1, 5, 6, 7, 8]
    assert penalties(dry, tokens, []) == pytest.approx({9: 0.8 * 1.75**2})
    far = DryPenalty(make_params(dry_base=4.0))
    assert penalties(far, [3] * 3000, []) == {3: pytest.approx(1e30)}


def test_repeats_of_a_whole_text_are_those_of_its_tokens_one_by_one() -> None:
    rng = np.random.default_rng(1)
    for num_ids in (1, 2, 3):
        tokens = rng.integers(num_ids, size=60).astype(np.uint32)
        found = suffix_repeats(tokens).tolist()
        for idx in range(59):
            length = 0
            while length <= idx and tokens[idx - length] == tokens[59 - length]:
                length += 1
            assert found[idx] == length
        assert found[59] == 0


def test_a_text_that_repeats_itself_a_thousand_times_takes_no_time() -> None:
    dry, tokens = DryPenalty(make_params(dry_base=1.0001)), [1, 2, 3] * 20_000
    began = time.perf_counter()
    for _ in range(20):
        penalties(dry, tokens, [])
        tokens.append(tokens[-3])
    assert time.perf_counter() - began < 2.0  # a comparison with each place takes hours


def test_it_adds_up_with_the_other_penalties_and_alone_changes_nothing_else() -> None:
    prompt = [7, 8, 9, 7, 8]
    (logits,) = some_logits(1)
    logits[9], logits[30] = 9.0, 7.5
    asked: dict[str, Any] = {"temperature": 0.0, "dry_multiplier": 1.0}
    rows = logits.expand(4, -1)
    reqs = [
        make_req(prompt, temperature=0.0),
        make_req(prompt, **asked),
        make_req(prompt, **asked, repetition_penalty=1.1),
        make_req(prompt, temperature=0.0, dry_multiplier=2.0, dry_penalty_last_n=0),
    ]
    assert sample(rows, *reqs) == [9, 9, 30, 9]  # 9.0; 8.0; 9 / 1.1 - 1; no window
    assert sample(rows[:1], make_req(prompt, temperature=0.0, dry_multiplier=2.0)) == [30]


def test_a_resumed_run_goes_on_with_the_same_tokens(tiny_llama: Path) -> None:
    prompt = random_prompt(12, seed=1) * 3
    fields = {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_breakers": breakers({(): [23]})}

    def run(output: list[int], **more: Any) -> list[int]:
        sampling = {"allowed_token_ids": tuple(range(20, 26)), "ignore_eos": True, **more}
        rig = Rig(tiny_llama)
        return list(rig.run(make_add(1, prompt, output, max_tokens=40, **sampling))[1])

    whole = run([], **fields)
    assert whole != run([])
    for num_known in (1, 17, 39):
        rest = run(whole[:num_known], **fields)
        assert (rest if len(rest) == 40 else whole[:num_known] + rest) == whole


def test_it_needs_the_level_and_leaves_draws_to_thresholds() -> None:
    params = SamplingParams(max_tokens=1, seed=0, dry_multiplier=0.1)
    assert (params.needed_level, params.is_narrowed) == (2, False)
    assert SamplingParams(max_tokens=1, seed=0, dry_base=3.0).needed_level == 1
