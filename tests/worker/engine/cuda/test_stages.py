"""Processes that share a model by layers, on a CPU: they give the tokens of one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.errors import ConfigError
from tests.forked_program import call_forked
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.test_gpu_engine import GpuRig, requests
from tests.worker.engine.cuda.test_ranks import assert_bits_alone, logprobs_of, several_ranks
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import FakeChannel, make_add, tokens_of
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AdapterLoaded, LoadAdapter, StepOutput

THREE: dict[str, Any] = {"tp": 1, "pp": 3, "overlap": None}
SHARED = random_prompt(50, 9)  # a prefix


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    return save_tiny_llama(path, attention_bias=True, vocab_size=301, num_hidden_layers=3)


async def give_the_tokens_of_one(checkpoint: Path, folder: Path) -> None:
    """Every sampling, in chunks, behind a prefix of another, with pages that change hands."""
    many = [
        make_add(100 + idx, random_prompt(20 + idx, idx), max_tokens=60, ignore_eos=True)
        for idx in range(8)
    ]
    many += [
        make_add(200 + idx, [*SHARED, *random_prompt(3, idx)], max_tokens=9, ignore_eos=True)
        for idx in range(3)
    ]
    adds = [*many, *requests()]
    alone = GpuRig(checkpoint, None)
    expected = alone.run(*adds)
    async with several_ranks(checkpoint, **THREE) as (engine, listener):
        engine.send(LoadAdapter("one", str(save_adapter(folder / "one", checkpoint, seed=1))))
        for add in adds:
            engine.send(add)
        await listener.until_finished(*expected)
        first, second = psutil.Process(engine.pid).children()
        await assert_bits_alone(engine, listener)
    events = listener.events
    found = tokens_of(events)
    assert {run_id: found[run_id] for run_id in expected} == expected
    steps = [each for each in events if isinstance(each, StepOutput)]
    assert any(each.load.num_preemptions for each in steps)
    assert any(each.load.num_prefix_hits for each in steps)
    (answer,) = [each for each in events if isinstance(each, AdapterLoaded)]
    assert answer.error == "adapters are not possible with pp=3: stages have none"
    for run_id in expected:
        ours = logprobs_of(events, run_id)
        theirs = logprobs_of(alone.channel.events, run_id)
        for one, other in zip(ours, theirs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert psutil.wait_procs([first, second], timeout=10.0)[1] == [], "one outlived rank 0"


async def end_together(checkpoint: Path) -> None:
    """Whichever stage dies: here one that another one waits for."""
    async with several_ranks(checkpoint, **THREE) as (engine, listener):
        engine.send(make_add(1, random_prompt(9, 1), max_tokens=400, ignore_eos=True))
        await listener.until_event(StepOutput)
        psutil.Process(engine.pid).children()[1].kill()
        await listener.until_exit()
    assert listener.returncodes == [1]


def run(checkpoint: Path, folder: Path) -> None:
    asyncio.run(give_the_tokens_of_one(checkpoint, folder))


def run_to_its_end(checkpoint: Path) -> None:
    asyncio.run(end_together(checkpoint))


def test_three_stages_give_the_tokens_of_one(checkpoint: Path, tmp_path: Path) -> None:
    call_forked(run, checkpoint, tmp_path, timeout_s=150)


@pytest.mark.nightly
def test_a_stage_takes_the_others_with_it(checkpoint: Path) -> None:
    call_forked(run_to_its_end, checkpoint, timeout_s=150)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tp": 2}, "pp=2 is not possible with tp=2: a stage is one process"),
        ({"overlap": True}, "overlap=True is not possible with pp=2: its first stage begins with"),
        ({"speculate": "ngram"}, "speculate=ngram is not possible with pp=2: stages confirm no"),
        ({"draft_model": "x"}, "draft_model=x is not possible with pp=2: stages confirm no"),
        ({"nnodes": 3}, "nnodes=3 does not divide pp=2"),
        (
            {"deterministic": True, "dtype": "bfloat16"},
            "deterministic is not possible with pp=2 on a CPU in bfloat16: take dtype=float32",
        ),
        ({"kv_dtype": "fp8"}, "kv_dtype=fp8 is not possible with pp=2 on a CPU"),
        ({"pp": 4}, "pp=4 is more than the 3 layers of the model"),
        ({"pp": 0}, "pp must be at least 1, not 0"),
    ],
)
def test_what_stages_do_not_do_is_refused(
    checkpoint: Path, config: dict[str, Any], message: str
) -> None:
    values: dict[str, Any] = {"model_path": str(checkpoint), "device": "cpu", "pp": 2} | config
    with pytest.raises(ConfigError, match=f"^{message}"):
        EngineLoader(EngineConfig(**values), FakeChannel()).load()
