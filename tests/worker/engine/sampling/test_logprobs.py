from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.logprobs import NO_RANK, TokenLogprob, unpack_logprobs
from tests.tiny_decoder import VOCAB_SIZE
from tests.worker.engine.tiny_models import Rig, random_prompt, reference_logits
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AddRequest

PROMPT = random_prompt(150, seed=8)


def output_logprobs(rig: Rig, run_id: int, num_top: int) -> list[TokenLogprob]:
    outputs = [each for step in rig.channel.steps for each in step.outputs if each.run_id == run_id]
    return unpack_logprobs(b"".join(each.logprobs for each in outputs), num_top)


def prompt_logprobs(rig: Rig, run_id: int, num_top: int) -> list[TokenLogprob]:
    """They come with the first output, and only once."""
    outputs = [each for step in rig.channel.steps for each in step.outputs if each.run_id == run_id]
    assert not any(each.prompt_logprobs for each in outputs[1:])
    return unpack_logprobs(outputs[0].prompt_logprobs, num_top)


def scored(run_id: int = 1, **sampling: Any) -> AddRequest:
    return make_add(run_id, PROMPT, **({"max_tokens": 3, "ignore_eos": True} | sampling))


def assert_like_transformers(
    path: Path, token_ids: list[int], records: list[TokenLogprob], first: int
) -> None:
    """`records` are of token_ids[first:]."""
    reference = reference_logits(path, token_ids).double().log_softmax(-1)
    assert [record.token_id for record in records] == token_ids[first:]
    for position, record in enumerate(records, start=first):
        row = reference[position - 1]
        assert record.logprob == pytest.approx(float(row[record.token_id]), abs=1e-4)
        assert record.rank == 1 + int((row > row[record.token_id]).sum())
        values, ids = row.topk(len(record.top))
        assert [token_id for token_id, _ in record.top] == ids.tolist()
        assert [value for _, value in record.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_output_and_prompt_are_scored_as_transformers_does(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, max_step_tokens=37)  # chunk borders within the prompt
    add = scored(max_tokens=12, temperature=0.9, top_p=0.8, logprobs=4, prompt_logprobs=2)
    output = rig.run(add)[1]
    records = prompt_logprobs(rig, 1, 2)
    assert records[0] == TokenLogprob(PROMPT[0], NO_RANK, 0.0, ((0, 0.0), (0, 0.0)))
    assert_like_transformers(tiny_llama, PROMPT, records[1:], 1)
    assert_like_transformers(tiny_llama, PROMPT + output, output_logprobs(rig, 1, 4), len(PROMPT))


def test_named_tokens_stand_behind_the_likeliest(tiny_llama: Path) -> None:
    named = (7, 40, 3)
    rig = Rig(tiny_llama)
    output = rig.run(scored(logprobs=2, prompt_logprobs=1, logprob_ids=named))[1]
    records = [*prompt_logprobs(rig, 1, 4)[1:], *output_logprobs(rig, 1, 5)]
    reference = reference_logits(tiny_llama, PROMPT + output).double().log_softmax(-1)
    for row, record in zip(reference, records, strict=False):
        alternatives = record.top[-3:]
        assert [token_id for token_id, _ in alternatives] == [*named]
        assert [value for _, value in alternatives] == pytest.approx(
            [float(row[token_id]) for token_id in named], abs=1e-4
        )
        likeliest = row.topk(len(record.top) - 3).indices.tolist()
        assert [token_id for token_id, _ in record.top[:-3]] == likeliest


def test_a_cached_prefix_hides_no_position(tiny_llama: Path) -> None:
    alone = Rig(tiny_llama)
    alone.run(scored(prompt_logprobs=1))
    rig = Rig(tiny_llama)
    rig.run(make_add(7, PROMPT), scored(8, max_tokens=1))
    rig.run(scored(prompt_logprobs=1))
    assert prompt_logprobs(rig, 1, 1) == prompt_logprobs(alone, 1, 1)
    assert rig.channel.finishes()[1].num_cached_tokens == 0
    # What it has computed serves others: only the last page is left to compute.
    alone.run(make_add(2, PROMPT))
    assert alone.channel.finishes()[2].num_cached_tokens == len(PROMPT) // 16 * 16


def test_nothing_but_the_prompt_is_scored(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, max_step_tokens=64)
    rig.run(scored(max_tokens=0, prompt_logprobs=1), make_add(2, random_prompt(9, 9)))
    assert rig.channel.tokens()[1] == []
    assert rig.channel.finishes()[1] == Finish(FinishReason.LENGTH)
    assert len(prompt_logprobs(rig, 1, 1)) == len(PROMPT)
    assert rig.channel.steps[-1].load.num_running == 0


def test_a_prompt_as_long_as_the_context_can_be_scored(tiny_llama: Path) -> None:
    prompt = random_prompt(200, 3)
    rig = Rig(tiny_llama, max_context_len=200)
    rig.run(make_add(1, prompt, max_tokens=0, prompt_logprobs=0))
    assert_like_transformers(tiny_llama, prompt, prompt_logprobs(rig, 1, 0)[1:], 1)


def test_a_prompt_of_one_token_has_one_record(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(make_add(1, [5], max_tokens=0, prompt_logprobs=3))
    (record,) = prompt_logprobs(rig, 1, 3)
    assert (record.token_id, record.rank) == (5, NO_RANK)


def test_a_resumed_run_scores_no_prompt_again(tiny_llama: Path) -> None:
    whole = Rig(tiny_llama)
    output = whole.run(scored(max_tokens=6, logprobs=1, prompt_logprobs=1))[1]
    rig = Rig(tiny_llama)
    resumed = make_add(
        1, PROMPT, output[:2], max_tokens=6, logprobs=1, prompt_logprobs=1, ignore_eos=True
    )
    assert rig.run(resumed)[1] == output[2:]
    assert prompt_logprobs(rig, 1, 1) == []
    assert output_logprobs(rig, 1, 1) == output_logprobs(whole, 1, 1)[2:]


def test_retractions_change_no_record(tiny_llama: Path) -> None:
    others = [
        make_add(run_id, random_prompt(60 + run_id, run_id), max_tokens=60, ignore_eos=True)
        for run_id in range(2, 7)
    ]
    subject = scored(max_tokens=80, logprobs=2, prompt_logprobs=1, temperature=1.0)
    alone = Rig(tiny_llama)
    alone.run(subject)
    rig = Rig(tiny_llama, num_kv_tokens=420, max_step_tokens=48)
    rig.run(*others, subject)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert prompt_logprobs(rig, 1, 1) == prompt_logprobs(alone, 1, 1)
    assert output_logprobs(rig, 1, 2) == output_logprobs(alone, 1, 2)


def test_a_prompt_that_is_no_number_fails_alone(tiny_llama: Path) -> None:
    expected = Rig(tiny_llama).run(make_add(2, random_prompt(20, 2)))[2]
    rig = Rig(tiny_llama)
    poison = min(set(range(VOCAB_SIZE)) - {*random_prompt(20, 2), *expected})
    rig.poison(poison)
    bad = make_add(1, [5, poison, 6], max_tokens=0, prompt_logprobs=1)
    tokens = rig.run(bad, make_add(2, random_prompt(20, 2)))
    assert rig.channel.finishes()[1].reason is FinishReason.ERROR
    assert tokens[2] == expected


def test_a_request_with_nothing_allowed_fails_alone(tiny_llama: Path) -> None:
    expected = Rig(tiny_llama).run(make_add(2, random_prompt(20, 2)))[2]
    rig = Rig(tiny_llama)
    bad = make_add(1, PROMPT, allowed_token_ids=(7,), bad_words=((7, 7),), logprobs=1)
    tokens = rig.run(bad, make_add(2, random_prompt(20, 2)))
    finish = rig.channel.finishes()[1]
    assert finish.message is not None
    assert finish.message.startswith("no token is left to choose")
    assert tokens == {1: [7], 2: expected}
    assert len(output_logprobs(rig, 1, 1)) == 1
