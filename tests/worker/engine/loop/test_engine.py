from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from shared.protocol.finish import Finish, FinishReason
from tests.tiny_decoder import VOCAB_SIZE
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import (
    AbortRequest,
    EngineReady,
    FlushCache,
    ReleaseCache,
    SetPaused,
    StepOutput,
)


@pytest.fixture(scope="module")
def rig(tiny_llama: Path) -> Rig:
    return Rig(tiny_llama, max_running=4)


def test_it_says_what_it_can_hold(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, num_kv_tokens=1000, max_context_len=200)
    rig.run()
    ready = rig.channel.events[-1]
    assert isinstance(ready, EngineReady)
    assert 0 < ready.one_token_step_s < 1
    assert ready == EngineReady(
        200,
        300,
        16,
        992,
        160,
        ready.one_token_step_s,
        496,
        ready.startup_s,
        weights="float32",
        dtype="float32",
        can_release_cache=True,
    )


def test_each_step_is_one_output(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(
        make_add(1, random_prompt(5, 1), max_tokens=3, ignore_eos=True),
        make_add(2, random_prompt(9, 2), max_tokens=2, ignore_eos=True),
    )
    steps = rig.channel.steps
    assert [step.step for step in steps] == [1, 2, 3]
    assert [[output.run_id for output in step.outputs] for step in steps] == [[1, 2], [1, 2], [1]]
    assert [step.load.num_running for step in steps] == [2, 1, 0]
    assert steps[-1].load.num_free_tokens == steps[-1].load.num_kv_tokens


def test_an_abort_is_told_by_the_load_alone(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(make_add(1, [5, 6]), AbortRequest(1), AbortRequest(7))
    assert [step.outputs for step in rig.channel.steps] == [[]]
    assert rig.channel.steps[0].load.num_waiting == 0


def test_a_flush_is_told_by_the_load(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(40, 7)
    for run_id, commands in ((1, []), (2, [FlushCache()]), (3, [])):
        rig.run(*commands, make_add(run_id, prompt, max_tokens=1))
    finishes = rig.channel.finishes()
    assert [finishes[run_id].num_cached_tokens for run_id in (1, 2, 3)] == [0, 0, 32]


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_released_cache_takes_no_memory_until_it_is_used_again(
    family: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """The second one has recurrent states, too."""
    path = tiny_llama if family == "llama" else save_recurrent(tmp_path, family)
    gc.collect()
    others_kb = shared_memory_kb()  # of engines of other tests
    rig = Rig(path)
    prompt = random_prompt(200, 7)
    [before] = rig.run(make_add(1, prompt, max_tokens=3, ignore_eos=True)).values()
    assert len(before) == 3
    used_kb = shared_memory_kb() - others_kb
    rig.run(ReleaseCache())
    assert shared_memory_kb() - others_kb < used_kb / 4
    tokens = rig.run(make_add(2, prompt, max_tokens=3, ignore_eos=True))
    assert tokens[2] == before
    assert rig.channel.finishes()[2].num_cached_tokens == 0


def shared_memory_kb() -> int:
    """Of this process, that the operating system has given it."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssShmem:")
    ]
    return int(line.split()[1])


def test_a_pause_holds_the_steps(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.channel.later = [(1.0, SetPaused(False))]
    rig.run(SetPaused(True), make_add(1, [5, 6], max_tokens=2, ignore_eos=True))
    times = [
        sent_at
        for event, sent_at in zip(rig.channel.events, rig.channel.sent_at, strict=True)
        if isinstance(event, StepOutput) and event.outputs
    ]
    assert times == [1.0, 1.0]


def test_a_complete_request_is_answered_without_a_step(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(make_add(1, [5, 6], [7, 8], max_tokens=2), make_add(2, []))
    assert rig.channel.finishes()[1] == Finish(FinishReason.LENGTH)
    assert rig.channel.finishes()[2].reason is FinishReason.ERROR
    assert rig.channel.tokens() == {1: [], 2: []}


def test_a_stop_token_ends_a_run_and_is_put_out(tiny_llama: Path) -> None:
    prompt = random_prompt(30, 3)
    whole = Rig(tiny_llama).run(make_add(1, prompt, max_tokens=30, ignore_eos=True))[1]
    stop = whole[10]
    rig = Rig(tiny_llama)
    rig.run(make_add(1, prompt, max_tokens=30, ignore_eos=True, stop_token_ids=(stop,)))
    end = whole.index(stop) + 1
    assert rig.channel.tokens()[1] == whole[:end]
    assert rig.channel.finishes()[1] == Finish(FinishReason.STOP, matched=stop)


def test_min_tokens_keeps_the_end_token_away(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    add = make_add(1, random_prompt(10, 4), max_tokens=40, min_tokens=40, temperature=1.5)
    assert 1 not in rig.run(add)[1]


def test_penalties_survive_a_resume(tiny_llama: Path) -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.8,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "top_p": 0.9,
        "min_tokens": 20,
        "seed": 99,
    }
    prompt = random_prompt(20, 5)
    whole = Rig(tiny_llama).run(make_add(1, prompt, max_tokens=40, **sampling))[1]
    rest = Rig(tiny_llama).run(make_add(1, prompt, whole[:13], max_tokens=40, **sampling))[1]
    assert whole[:13] + rest == whole


def test_seeds_draw_differently(rig: Rig) -> None:
    prompt = random_prompt(20, 6)
    rig.run(
        *(
            make_add(seed, prompt, temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True)
            for seed in range(10, 14)
        )
    )
    tokens = rig.channel.tokens()
    assert len({tuple(tokens[seed]) for seed in range(10, 14)}) == 4


def test_a_run_that_breaks_the_model_leaves_no_trace(tiny_llama: Path) -> None:
    others = [
        make_add(run_id, random_prompt(20 * run_id, run_id), max_tokens=30, ignore_eos=True)
        for run_id in (1, 2, 3)
    ]
    expected = Rig(tiny_llama, num_kv_tokens=320).run(*others)
    used = {token_id for run_id in (1, 2, 3) for token_id in random_prompt(20 * run_id, run_id)}
    used |= {token_id for token_ids in expected.values() for token_id in token_ids}
    poison = min(set(range(VOCAB_SIZE)) - used)
    rig = Rig(tiny_llama, num_kv_tokens=320)
    rig.poison(poison)
    rig.run(others[0], make_add(9, [poison] * 200), *others[1:])
    assert rig.channel.finishes()[9].reason is FinishReason.ERROR
    for run_id in (1, 2, 3):
        assert rig.channel.tokens()[run_id] == expected[run_id]
    rig.run(
        *(
            make_add(
                run_id + 10, random_prompt(20 * run_id, run_id), max_tokens=30, ignore_eos=True
            )
            for run_id in (1, 2, 3)
        )
    )
    for run_id in (1, 2, 3):
        assert rig.channel.tokens()[run_id + 10] == expected[run_id]


def test_alone_a_run_fills_the_memory(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, num_kv_tokens=64)
    output = rig.run(make_add(1, random_prompt(20, 7), max_tokens=400, ignore_eos=True))[1]
    assert len(output) == 45  # 64 slots, and a last token that needs none
    assert rig.channel.finishes()[1] == Finish(FinishReason.LENGTH)


def test_an_abort_in_the_middle_leaves_the_others(tiny_llama: Path) -> None:
    others = [
        make_add(run_id, random_prompt(30, run_id), max_tokens=20, ignore_eos=True)
        for run_id in (1, 2)
    ]
    expected = Rig(tiny_llama).run(*others)
    rig = Rig(tiny_llama, max_step_tokens=32)
    rig.channel.commands = [others[0], make_add(9, random_prompt(200, 9)), others[1]]
    for _ in range(4):
        rig.loop.turn()
    tokens = rig.run(AbortRequest(9))
    assert {run_id: tokens[run_id] for run_id in (1, 2)} == expected
