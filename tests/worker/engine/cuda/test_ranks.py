"""Two ranks that share a model, on a CPU: they give the tokens of one, and end together."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from shared.errors import ConfigError
from shared.protocol.logprobs import unpack_logprobs
from tests.forked_program import call_forked
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import SAMPLINGS, GpuRig, requests
from tests.worker.engine.families import FUSED_IN_TORCH
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama, save_tiny_model
from tests.worker.engine_fakes import FakeChannel, make_add, tokens_of
from tests.worker.engine_listener import Listener
from worker.engine.cuda.batch.step_plan import StepPlan
from worker.engine.cuda.tensor_parallel import rank_group
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, RankSockets
from worker.engine.cuda.tensor_parallel.rank_orders import (
    KeepTokens,
    RankOrder,
    RunHead,
    RunStep,
    decode_order,
    encode_order,
)
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_child.engine_process import EngineProcess
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_frames import FrameReader
from worker.engine_link.engine_messages import (
    AdapterLoaded,
    EngineEvent,
    EngineFailed,
    LoadAdapter,
    StepOutput,
)

CONFIG: dict[str, Any] = {
    "device": "cpu",
    "tp": 2,
    "num_threads": 1,
    "num_kv_tokens": 320,
    "max_running": 6,
    "max_step_tokens": 64,
    "max_loras": 2,
    "max_step_s": 60.0,
    "target_itl_s": 60.0,
    "overlap": True,
    "cuda_graph_sizes": (2, 5),
    "cuda_graph_tokens": (16, 32),  # steps with and without one
}

ADAPTERS = ("one", "two", "three")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a bias everywhere, and outputs of which one rank has more."""
    path = tmp_path_factory.mktemp("llama")
    return save_tiny_llama(path, attention_bias=True, mlp_bias=True, vocab_size=301)


@asynccontextmanager
async def several_ranks(
    checkpoint: Path, **changes: Any
) -> AsyncIterator[tuple[EngineProcess, Listener]]:
    listener = Listener()
    config = EngineConfig(model_path=str(checkpoint), **CONFIG | changes)
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    try:
        yield engine, listener
    finally:
        engine.kill()
        await engine.wait()


def follower_of(engine: EngineProcess) -> psutil.Process:
    (follower,) = psutil.Process(engine.pid).children()
    return follower


def logprobs_of(events: list[EngineEvent], run_id: int) -> list[Any]:
    outputs = [
        output
        for event in events
        if isinstance(event, StepOutput)
        for output in event.outputs
        if output.run_id == run_id
    ]
    prompt = b"".join(output.prompt_logprobs for output in outputs)
    return [
        *unpack_logprobs(prompt, 2),
        *unpack_logprobs(b"".join(output.logprobs for output in outputs), 3),
    ]


async def assert_bits_alone(engine: EngineProcess, listener: Listener) -> None:
    """Requests in company, then each of them resumed alone behind some of its tokens."""
    prompts = {1000 + idx: random_prompt(7 + 11 * idx, 50 + idx) for idx in range(5)}
    asked: dict[str, Any] = {"ignore_eos": True, "logprobs": 3}
    for run_id, prompt in prompts.items():
        engine.send(make_add(run_id, prompt, max_tokens=12, namespace=b"company", **asked))
    await listener.until_finished(*prompts)
    tokens = tokens_of(listener.events)
    for run_id, prompt in prompts.items():
        resumed, again = run_id + len(prompts), [*prompt, *tokens[run_id][:5]]
        engine.send(make_add(resumed, again, max_tokens=7, namespace=b"alone", **asked))
        await listener.until_finished(resumed)
        ours = logprobs_of(listener.events, run_id)
        assert ours[5:] == logprobs_of(listener.events, resumed)


async def give_the_tokens_of_one(checkpoint: Path, tmp_path: Path) -> None:
    """Every sampling, in chunks, with rows and pages that change hands; with adapters, of which two
    have room.
    """
    loads = [
        LoadAdapter(name, str(save_adapter(tmp_path / name, checkpoint, seed=seed)))
        for seed, name in enumerate(ADAPTERS)
    ]
    stranger = save_tiny_llama(tmp_path / "stranger", hidden_size=96)
    loads.append(LoadAdapter("foreign", str(save_adapter(tmp_path / "foreign", stranger))))
    many = [
        make_add(100 + idx, random_prompt(20 + idx, idx), max_tokens=60, ignore_eos=True)
        for idx in range(8)
    ]
    for idx, adapter in enumerate((*ADAPTERS, *ADAPTERS)):
        of_adapter: dict[str, Any] = {"adapter": adapter, "namespace": adapter.encode()}
        many.append(make_add(200 + idx, random_prompt(20, 1), max_tokens=20, **of_adapter))
    adds = [*many, *requests()]
    alone = GpuRig(checkpoint, None, max_loras=2)
    expected = alone.run(*loads, *adds)
    assert len({str(expected[200 + idx]) for idx in range(len(ADAPTERS))}) == len(ADAPTERS)
    async with several_ranks(checkpoint) as (engine, listener):
        for load in loads:
            engine.send(load)
        for add in adds:
            engine.send(add)
        await listener.until_finished(*expected)
        await assert_bits_alone(engine, listener)
        follower = follower_of(engine)
    events = listener.events
    found = tokens_of(events)
    assert {run_id: found[run_id] for run_id in expected} == expected
    assert any(isinstance(each, StepOutput) and each.load.num_preemptions for each in events)
    answers = {each.adapter: each.error for each in events if isinstance(each, AdapterLoaded)}
    foreign = answers.pop("foreign")
    assert answers == dict.fromkeys(ADAPTERS, "")
    assert "goes from 96 to" in foreign
    asked = [*SAMPLINGS].index("logprobs")
    ours, theirs = logprobs_of(events, asked), logprobs_of(alone.channel.events, asked)
    assert len(ours) == len(theirs) > 60
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert psutil.wait_procs([follower], timeout=10.0)[1] == [], "it outlived rank 0"


async def end_together(checkpoint: Path, _: Path) -> None:
    """In the middle of its steps: the worker sees it exit, and starts another one."""
    async with several_ranks(checkpoint) as (engine, listener):
        engine.send(make_add(1, random_prompt(9, 1), max_tokens=400, ignore_eos=True))
        await listener.until_event(StepOutput)
        follower_of(engine).kill()
        await listener.until_exit()
    assert listener.returncodes == [1]


async def tell_what_none_can_load(checkpoint: Path, tmp_path: Path) -> None:
    """By rank 0, whichever rank finds out first."""
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    save_file({"model.embed_tokens.weight": torch.zeros(301, 48)}, tmp_path / "model.safetensors")
    async with several_ranks(tmp_path) as (engine, listener):
        assert await engine.wait() == 1
    failed = listener.events[-1]
    assert isinstance(failed, EngineFailed)
    assert "has no tensor 'model.layers.0." in failed.message


Story = Callable[[Path, Path], Coroutine[Any, Any, None]]


def run_story(story: Story, checkpoint: Path, folder: Path) -> None:
    asyncio.run(story(checkpoint, folder))


@pytest.mark.parametrize(
    "story",
    [give_the_tokens_of_one, end_together, tell_what_none_can_load],
    ids=lambda story: story.__name__,
)
def test_two_ranks(story: Story, checkpoint: Path, tmp_path: Path) -> None:
    call_forked(run_story, story, checkpoint, tmp_path, timeout_s=100)


async def give_the_tokens_of_one_by_four(checkpoint: Path, _: Path) -> None:
    """With fewer heads of keys and values."""
    adds = [
        make_add(run_id, random_prompt(20 * run_id, run_id), max_tokens=30, ignore_eos=True)
        for run_id in range(1, 5)
    ]
    expected = GpuRig(checkpoint, None).run(*adds)
    async with several_ranks(checkpoint, tp=4, dtype="float32") as (engine, listener):
        for add in adds:
            engine.send(add)
        await listener.until_finished(*expected)
        assert tokens_of(listener.events) == expected
        await assert_bits_alone(engine, listener)


@pytest.mark.nightly
def test_four_ranks(tmp_path: Path) -> None:
    checkpoint = save_tiny_llama(tmp_path, num_attention_heads=8, num_key_value_heads=2)
    call_forked(run_story, give_the_tokens_of_one_by_four, checkpoint, tmp_path, timeout_s=300)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["cohere2", "olmo2"])
def test_two_ranks_of_another_family(family: str, tmp_path: Path) -> None:
    model_type, overrides = FUSED_IN_TORCH[family]
    checkpoint = save_tiny_model(tmp_path / "model", model_type, **overrides)
    call_forked(run_story, give_the_tokens_of_one, checkpoint, tmp_path, timeout_s=200)


def test_a_sum_is_not_awaited_as_long_as_a_rank_that_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_group, "TIMEOUT", timedelta(seconds=0.2))
    cpu = torch.device("cpu")
    ours, theirs = socket.socketpair()

    def come_late() -> list[int]:
        group = RankGroup(RankSockets(1, 2, [theirs]))
        time.sleep(2 * rank_group.TIMEOUT.total_seconds())
        return [group.least(5, cpu), *group.first([0, 0], cpu)]

    with ours, theirs, ThreadPoolExecutor(1) as thread:
        other = thread.submit(come_late)
        group = RankGroup(RankSockets(0, 2, [ours]))
        assert group.least(7, cpu) == 5
        assert group.first([3, 4], cpu) == [3, 4]
        assert other.result() == [5, 3, 4]
        with pytest.raises(TimeoutError):
            group.sum_in_order(torch.ones(3))


def test_a_model_that_cannot_be_divided_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"tp=3 does not divide .* 2 heads .*possible are 1, 2$"):
        GpuRig(checkpoint, LateDevice(), tp=3)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are several GPUs")
def test_ranks_need_a_gpu_each(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="tp=2 needs 2 NVIDIA GPUs, torch finds"):
        EngineLoader(EngineConfig(model_path=str(checkpoint), tp=2), FakeChannel()).load()


def test_an_order_arrives_as_it_was_sent() -> None:
    plan = StepPlan(
        num_decode=1,
        rows=np.array([3, 1]),
        query_lens=np.array([1, 2]),
        seq_lens=np.array([9, 2]),
        input_ids=np.array([7, 8, 9]),
        positions=np.array([8, 0, 1]),
        awaited_rows=np.array([3, -1, -1]),
        sample_idx=np.array([0]),
        sample_rows=np.array([3]),
        sample_positions=np.array([9]),
    )
    updates = np.array([[5, 6, 7], [1, 2, 3]], np.int32)
    orders: list[RankOrder] = [
        RunStep(plan, 4, updates, chooses_late=True),
        RunHead(2),
        KeepTokens(np.array([3])),
    ]
    frames = FrameReader().feed(b"".join(encode_order(order) for order in orders))
    step, head, keep = map(decode_order, frames)
    assert head == RunHead(2)
    assert isinstance(keep, KeepTokens)
    assert keep.sample_rows.tolist() == [3]
    assert isinstance(step, RunStep)
    assert (step.max_pages, step.plan.num_decode, step.chooses_late) == (4, 1, True)
    assert step.page_updates.dtype == np.int32
    assert step.page_updates.tolist() == updates.tolist()
    for name in ("rows", "query_lens", "seq_lens", "input_ids", "positions", "awaited_rows"):
        assert getattr(step.plan, name).tolist() == getattr(plan, name).tolist()
    assert step.plan.num_samples == 1
