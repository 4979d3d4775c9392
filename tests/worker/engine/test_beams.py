"""Beam searches beside transformers' own, in company, short of memory, and broken off."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.protocol.finish import Beam, FinishReason
from shared.protocol.sampling import BeamParams, EarlyStopping
from shared.protocol.token_ids import unpack_token_ids
from tests.worker.engine.tiny_models import Rig, _reference_model, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AbortRequest, AddRequest

END_IDS = tuple(range(3, 300, 29))  # so many that outputs end early
EARLY: dict[EarlyStopping, Any] = {
    EarlyStopping.NOW: True,
    EarlyStopping.LIKELY: False,
    EarlyStopping.CERTAIN: "never",
}


def add_beams(
    run_id: int,
    prompt: list[int],
    width: int,
    num_kept: int | None = None,
    *,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = EarlyStopping.LIKELY,
    **sampling: Any,
) -> AddRequest:
    beam = BeamParams(width, num_kept or width, length_penalty, early_stopping)
    return make_add(run_id, prompt, beam=beam, **sampling)


def reference_beams(
    path: Path,
    prompt: list[int],
    width: int,
    max_tokens: int,
    end_ids: Collection[int] = (),
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = EarlyStopping.LIKELY,
) -> list[tuple[list[int], float]]:
    """Outputs of transformers and the sums of their logprobs."""
    found = _reference_model(path, torch.float32).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=list(end_ids) or None,
        pad_token_id=0,
        length_penalty=length_penalty,
        early_stopping=EARLY[early_stopping],
        output_scores=True,
        return_dict_in_generate=True,
    )
    beams = []
    for sequence, score in zip(
        found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True
    ):
        end = next((i + 1 for i, each in enumerate(sequence) if each in end_ids), max_tokens)
        beams.append((sequence[:end], score * end**length_penalty))
    return beams


def beams_of(rig: Rig, run_id: int) -> tuple[Beam, ...]:
    finish = rig.channel.finishes()[run_id]
    assert finish.beams, finish
    assert rig.channel.tokens()[run_id] == []
    return finish.beams


def assert_equal(ours: tuple[Beam, ...], theirs: list[tuple[list[int], float]]) -> None:
    assert [unpack_token_ids(beam.token_ids) for beam in ours] == [ids for ids, _ in theirs]
    logprobs = [beam.cumulative_logprob for beam in ours]
    assert logprobs == pytest.approx([logprob for _, logprob in theirs], abs=1e-3)


def test_it_finds_what_transformers_finds(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    cases = itertools.product((0.0, 1.0, 2.5, -1.0), EarlyStopping, ((), END_IDS))
    ended = {True: 0, False: 0}
    for run_id, (penalty, early, end_ids) in enumerate(cases, start=1):
        width = 2 + run_id % 5
        prompt = random_prompt(11 + run_id, run_id)
        options: dict[str, Any] = {"length_penalty": penalty, "early_stopping": early}
        rig.run(
            add_beams(
                run_id,
                prompt,
                width,
                max_tokens=20,
                ignore_eos=not end_ids,
                stop_token_ids=end_ids,
                **options,
            )
        )
        theirs = reference_beams(
            tiny_llama, prompt, width, 20, {1, *end_ids} if end_ids else (), **options
        )
        ours = beams_of(rig, run_id)
        assert_equal(ours, theirs)
        for beam, (ids, _) in zip(ours, theirs, strict=True):
            is_stopped = bool(end_ids) and ids[-1] in {1, *END_IDS}
            assert beam.reason is (FinishReason.STOP if is_stopped else FinishReason.LENGTH)
            ended[is_stopped] += 1
    assert min(ended.values()) > 20, "both ways to end are met"


def test_the_best_are_kept_and_one_beam_is_greedy(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(20, 1)
    rig.run(
        add_beams(1, prompt, 4, max_tokens=12, ignore_eos=True),
        add_beams(2, prompt, 4, 2, max_tokens=12, ignore_eos=True),
        add_beams(3, prompt, 1, max_tokens=12, ignore_eos=True),
        make_add(4, prompt, max_tokens=12, ignore_eos=True),
    )
    assert beams_of(rig, 2) == beams_of(rig, 1)[:2]
    (greedy,) = beams_of(rig, 3)
    assert unpack_token_ids(greedy.token_ids) == rig.channel.tokens()[4]


@pytest.mark.parametrize(
    "config", [{}, {"overlap": True}, {"num_kv_tokens": 160, "max_running": 3}]
)
def test_neighbours_and_searches_do_not_touch_each_other(
    tiny_llama: Path, config: dict[str, Any]
) -> None:
    """The last case: fewer rows than beams, and memory for two or three requests."""
    plain = [
        make_add(run_id, random_prompt(20 + run_id, run_id), max_tokens=30, ignore_eos=True)
        for run_id in (1, 2, 3)
    ]
    searches = [
        add_beams(run_id, random_prompt(30, run_id), 5, max_tokens=25, ignore_eos=True)
        for run_id in (4, 5)
    ]
    alone = Rig(tiny_llama).run(*plain)
    rig = Rig(tiny_llama, **config)
    rig.run(plain[0], searches[0], plain[1], searches[1], plain[2])
    for run_id, token_ids in alone.items():
        assert rig.channel.tokens()[run_id] == token_ids
    for run_id in (4, 5):
        assert_equal(
            beams_of(rig, run_id), reference_beams(tiny_llama, random_prompt(30, run_id), 5, 25)
        )


def test_its_steps_compute_less_than_a_page_each(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(add_beams(1, random_prompt(100, 1), 4, max_tokens=40, ignore_eos=True))
    first, *others = rig.runner.batches
    assert [(start, end) for _, start, end in first] == [(0, 100)]
    assert all(end - start <= 16 for batch in others for _, start, end in batch)
    load = rig.channel.steps[-1].load
    assert load.num_prefix_queries == 100  # once, not once a step
    assert load.num_free_tokens == load.num_kv_tokens


def test_an_abort_leaves_nothing(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(20, 1)
    rig.channel.later = [(1.0, AbortRequest(1))]
    rig.run(add_beams(1, prompt, 4, max_tokens=400), AbortRequest(1), add_beams(2, prompt, 2))
    assert 1 not in rig.channel.tokens()
    assert len(beams_of(rig, 2)) == 2
    assert not rig.engine._beams._runs
    assert not rig.engine._beams._owners


def test_what_cannot_be_computed_is_an_error(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, num_kv_tokens=64)
    rig.run(add_beams(1, random_prompt(60, 1), 3, max_tokens=20, ignore_eos=True))
    finish = rig.channel.finishes()[1]
    assert finish.reason is FinishReason.ERROR
    assert finish.message == "prompt and output have 65 tokens, the engine's memory holds 64"
    rig.poison(7)
    rig.run(add_beams(2, [7, 8], 3), add_beams(3, [9, 8], 3))
    assert rig.channel.finishes()[2].reason is FinishReason.ERROR
    assert len(beams_of(rig, 3)) == 3
    assert not rig.engine._beams._owners
