"""`thinking_token_budget`: so many tokens of reasoning, then the closing mark."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.sampling import SamplingParams, ThinkingBudget
from tests.worker.engine.sampling.test_sampler import make_req, sample, some_logits
from worker.engine.request.logit_rules import ThoughtLimit
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.sampling.sampler import HostLogits
from worker.engine.sampling.sampling_batch import SamplingBatch

BEGIN, NAME, END = 8, 7, 9
PROMPT = [1, BEGIN, 2]  # what it says counts for nothing


def budget(max_tokens: int, **fields: Any) -> ThinkingBudget:
    return ThinkingBudget(max_tokens, fields.pop("begin_ids", (BEGIN,)), END, **fields)


def forced_ids(thinking: ThinkingBudget, output: list[int]) -> list[int | None]:
    """At each place of an output, and behind it."""
    limit = ThoughtLimit(thinking, len(PROMPT))
    return [limit.forced_id(PROMPT + output[:end]) for end in range(len(output) + 1)]


@pytest.mark.parametrize(
    ("thinking", "output", "expected"),
    [
        (budget(2), [BEGIN, 1, 2, END, 3], [None, None, None, END, None, None]),
        (budget(2), [BEGIN, 1, END, 2, 3, 4], [None] * 7),
        (budget(2), [3, 4, 5, 6], [None] * 5),
        (budget(2), [BEGIN, 1, 2, 3, END], [None, None, None, END, END, None]),
        (budget(0), [BEGIN, END, BEGIN], [None, END, None, None]),
        (budget(0, is_open=True), [END, 1], [END, None, None]),
        (budget(1, is_open=True), [BEGIN, END, 1], [None, END, None, None]),
        (
            budget(2, repeats=True),
            [BEGIN, 1, END, 5, BEGIN, 1, END, BEGIN],
            [None, None, None, None, None, None, END, None, END],
        ),
        (
            budget(1, begin_ids=(BEGIN, NAME, 6)),
            [BEGIN, BEGIN, NAME, 6, 1, END, BEGIN, NAME, 6],
            [None, None, None, None, None, END, None, None, None, None],
        ),
        (budget(1, begin_ids=(BEGIN, NAME)), [BEGIN, 1, NAME, 1, 1], [None] * 6),
    ],
)
def test_the_mark_is_forced_behind_so_many_tokens(
    thinking: ThinkingBudget, output: list[int], expected: list[int | None]
) -> None:
    assert forced_ids(thinking, output) == expected


@given(
    st.lists(st.sampled_from([1, 2, NAME, BEGIN, END]), max_size=12),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(BEGIN,), (BEGIN, NAME)]),
)
def test_it_is_a_function_of_the_output(
    output: list[int], max_tokens: int, is_open: bool, repeats: bool, begin_ids: tuple[int, ...]
) -> None:
    thinking = budget(max_tokens, is_open=is_open, repeats=repeats, begin_ids=begin_ids)
    told = forced_ids(thinking, output)
    for end in range(len(output) + 1):
        anew = ThoughtLimit(thinking, len(PROMPT))
        assert anew.forced_id(PROMPT + output[:end]) == told[end]
        for cut in range(end):  # the rest are guesses
            resumed = ThoughtLimit(thinking, len(PROMPT))
            assert resumed.forced_id(PROMPT + output[:cut], output[cut:end]) == told[end]
            assert resumed.forced_id(PROMPT + output[:cut]) == told[cut]
        # A step that goes ahead of an unknown token would have missed none.
        if not anew.may_force_behind(PROMPT + output[:end]):
            for token_id in (1, NAME, BEGIN, END):
                assert forced_ids(thinking, [*output[:end], token_id])[-1] is None


def test_nothing_else_is_chosen() -> None:
    logits = some_logits(4)
    logits[:, END] = -30.0
    spent: dict[str, Any] = {"thinking": budget(2), "logit_bias": ((END, -5.0),)}
    reqs = [
        make_req(PROMPT, [BEGIN, 1, 2], **spent),
        make_req(PROMPT, [BEGIN, 1, 2], temperature=0.0, **spent),
        make_req(
            PROMPT, [BEGIN, 1, 2], top_k=3, min_p=0.2, typical_p=0.5, xtc_probability=1.0, **spent
        ),
        make_req(PROMPT, [BEGIN, 1], **spent),
    ]
    assert sample(logits, *reqs)[:3] == [END] * 3
    assert sample(logits, *reqs)[3] != END


def test_what_forbids_the_mark_goes_first() -> None:
    """As a grammar does within a character: the mark comes as soon as it may."""
    (logits,) = some_logits(1)
    req = make_req(PROMPT, [BEGIN, 1, 2], thinking=budget(2), allowed_token_ids=(3, 4))
    assert sample(logits[None], req)[0] in (3, 4)


def test_guesses_are_confirmed_up_to_the_mark() -> None:
    (logits,) = some_logits(1)
    req = make_req(PROMPT, [BEGIN, 1], thinking=budget(3))
    points = [SamplePoint(req, req.num_tokens + num, [1, 1, 1][:num]) for num in range(4)]
    rows = logits.expand(4, -1).clone()
    SamplingBatch.from_points(points, logits.shape[-1]).change(rows, HostLogits())
    num_left = (rows > -torch.inf).sum(dim=1).tolist()
    assert num_left == [len(logits), len(logits), 1, 1]
    assert rows[2].argmax() == END


def test_roles_of_older_builds_do_not_know_it() -> None:
    assert SamplingParams(max_tokens=1, seed=0, thinking=budget(1)).needed_level == 3
