"""Embeddings of the demo model while processes die: each input has one answer, the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from nats.aio.msg import Msg
from openai import AsyncOpenAI

from jetflock import Client
from shared.event_wait import wait_event
from shared.nats_client.connection import round_trip
from tests.e2e.role_stack import DEMO_MODEL, MODEL_NAME, REAL_ENGINE, RoleStack
from tests.eventually import Looks

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_INPUTS = 120
SLOW = (*REAL_ENGINE, "--max-step-tokens", "64", "--max-running", "8")
INPUTS = [f"Tell me a story about {i} dragons. " * (1 + i % 7) for i in range(NUM_INPUTS)]

Vectors = npt.NDArray[np.float32]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as running:
        yield running


@pytest.fixture
async def openai(stack: RoleStack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{stack.url()}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


async def embed(openai: AsyncOpenAI, inputs: Sequence[str]) -> Vectors:
    answer = await openai.embeddings.create(model=MODEL_NAME, input=list(inputs))
    assert [item.index for item in answer.data] == list(range(len(inputs)))
    return np.array([item.embedding for item in answer.data], np.float32)


def of_transformers(inputs: Sequence[str]) -> Vectors:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    model = AutoModel.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    vectors = []
    for text in inputs:
        with torch.inference_mode():
            states = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state
        vectors.append((states[0, -1] / states[0, -1].norm()).numpy())
    return np.array(vectors)


async def num_results(stack: RoleStack) -> int:
    stream = stack.cluster.subjects.results_stream
    info = await stack.cluster.js.api(f"STREAM.INFO.{stream}")
    return int(info["state"]["messages"])


async def until_in_the_middle(stack: RoleStack) -> None:
    """Of the second round: all inputs are stored, some have a result, most have not."""
    async for _ in Looks(30, longest_pause_s=0.005):
        num_done, num_queued = await num_results(stack), await stack.num_queued()
        if num_done >= NUM_INPUTS + 5 and num_done + num_queued >= 2 * NUM_INPUTS:
            break
    assert num_done < 2 * NUM_INPUTS - 10, "too late to disturb it"


async def assert_settled(stack: RoleStack) -> None:
    """After two rounds nothing is left in the queue, and each request has one result."""
    await stack.until_queued(0)
    assert await num_results(stack) == 2 * NUM_INPUTS


@asynccontextmanager
async def acceptance(stack: RoleStack) -> AsyncIterator[asyncio.Event]:
    """Set when a frontend has told a client over NATS that its request is stored."""
    accepted = asyncio.Event()

    async def on_message(message: Msg) -> None:
        if (message.headers or {}).get("Jetflock-Status") == "accepted":
            accepted.set()

    subscription = await stack.cluster.nc.subscribe("_INBOX.>", cb=on_message)
    await round_trip(stack.cluster.nc)
    yield accepted
    await subscription.unsubscribe()


@pytest.mark.parametrize(
    "victim",
    [
        "worker",
        pytest.param("engine", marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param("detok", marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
async def test_every_input_is_answered_once(
    stack: RoleStack, openai: AsyncOpenAI, victim: str
) -> None:
    first, _ = stack.start_worker(*SLOW), stack.start_worker(*SLOW)
    detok = next(role for role in stack.roles if role.name.startswith("detok"))
    await stack.wait_ready(2)
    expected = await embed(openai, INPUTS)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    assert np.linalg.matrix_rank(expected) > 10, "the vectors must differ to be told apart"
    task = asyncio.create_task(embed(openai, INPUTS))
    await until_in_the_middle(stack)
    match victim:
        case "worker":
            first.kill()
        case "engine":
            first.engine().kill()
        case "detok":
            detok.kill()
            stack.start_detok()
    assert np.allclose(await task, expected, atol=1e-5)
    await assert_settled(stack)


@pytest.mark.nightly
async def test_a_frontend_dies_under_jetflocks_client(
    stack: RoleStack, openai: AsyncOpenAI
) -> None:
    first = stack.roles[0]
    stack.start_worker(*SLOW, "--dtype", "float32")
    await stack.wait_ready(1)
    expected = await embed(openai, INPUTS)
    assert np.allclose(
        expected[:9], await asyncio.to_thread(of_transformers, INPUTS[:9]), atol=1e-5
    )
    async with acceptance(stack) as accepted, Client(stack.nats.url) as client:
        task = asyncio.create_task(client.embed_async(INPUTS, model=MODEL_NAME))
        await wait_event(accepted, 30)
        await until_in_the_middle(stack)
        first.kill()
        stack.start_frontend()
        embeddings = await task
    assert np.allclose(np.array(embeddings.vectors), expected, atol=1e-5)
    await assert_settled(stack)
