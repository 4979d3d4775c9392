"""Kill, stop, restart each process in the middle of streams: the text is as if nothing happened.

The scripted engine makes each token from the prompt, the seed and the position alone, as a real
one does up to rounding; so the undisturbed run is the exact expectation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.protocol.codec import decode
from shared.protocol.role_cards import RoleCard, WorkerCard
from tests.e2e.role_stack import (
    DEMO_MODEL,
    MODEL_NAME,
    REAL_ENGINE,
    SCRIPTED,
    RoleProcess,
    RoleStack,
    scripted,
)
from tests.e2e.streams import IdStream, Stream, completion_body, http_client, run_stream
from tests.eventually import Looks
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 4
NUM_TOKENS = 100
# What is said undisturbed of so many tokens, by the workers of whatever test.
EXPECTED: dict[int, list[str]] = {}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as running:
        yield running


def token_range(low: int, high: int) -> list[str]:
    return ["--scripted-token-low", str(low), "--scripted-token-high", str(high)]


async def expected_texts(stack: RoleStack, num_tokens: int = NUM_TOKENS) -> list[str]:
    if num_tokens in EXPECTED:
        return EXPECTED[num_tokens]
    streams = await asyncio.gather(
        *(run_stream(stack.url(), seed=seed, max_tokens=num_tokens) for seed in range(NUM_STREAMS))
    )
    texts = EXPECTED[num_tokens] = [stream.text for stream in streams]
    assert len(set(texts)) == NUM_STREAMS, "the streams must differ to be told apart"
    return texts


class Disturbed:
    """Streams that run while something dies."""

    def __init__(self, stack: RoleStack, num_tokens: int = NUM_TOKENS) -> None:
        self._num_tokens = num_tokens
        self.streams = [Stream() for _ in range(NUM_STREAMS)]
        self._url = stack.url()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, num_tokens: int = 20) -> None:
        self._tasks = [
            asyncio.create_task(
                stream.post(self._url, completion_body(seed=seed, max_tokens=self._num_tokens))
            )
            for seed, stream in enumerate(self.streams)
        ]
        for stream in self.streams:
            await stream.wait_for_tokens(num_tokens)
        assert not any(stream.is_done for stream in self.streams), "too late to disturb them"

    async def finish(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)

    def assert_texts(self, expected: list[str]) -> None:
        assert [stream.text for stream in self.streams] == expected
        assert all(stream.is_done for stream in self.streams)
        assert {stream.finish_reason for stream in self.streams} == {"length"}
        assert all(stream.error is None for stream in self.streams)


async def worker_of(stack: RoleStack, stream: Stream | IdStream) -> str:
    """Who makes its tokens now."""
    async with http_client() as client:
        answer = await client.get(f"{stack.url()}/v1/streams/{stream.rid}/path")
    return str(answer.raise_for_status().json()["paths"][0][-1]["worker"])


async def holder_of(stack: RoleStack, stream: Stream | IdStream) -> RoleProcess:
    """Who makes its tokens now: any other worker may hold no stream at all."""
    name = await worker_of(stack, stream)
    entries = await stack.cluster.bucket(stack.cluster.subjects.workers_bucket).entries()
    cards = [decode(WorkerCard, entry.value) for entry in entries]
    pids = {card.worker: card.pid for card in cards}
    return next(role for role in stack.roles if role.pid == pids[name])


async def test_a_worker_killed_with_9_loses_and_repeats_nothing(stack: RoleStack) -> None:
    first, _ = stack.start_worker(*SCRIPTED), stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    first.kill()
    await disturbed.finish()
    disturbed.assert_texts(expected)
    await stack.until_queued(0)


async def test_the_engine_process_killed_with_9(stack: RoleStack) -> None:
    worker = stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    worker.engine().kill()
    await disturbed.finish()
    disturbed.assert_texts(expected)


async def test_a_detokenizer_killed_with_9(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    stack.roles[1].kill()
    stack.start_detok()
    await disturbed.finish()
    disturbed.assert_texts(expected)


async def test_a_frontend_killed_with_9_its_clients_resume_on_another(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    other = stack.start_frontend()
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    stack.roles[0].kill()
    with contextlib.suppress(httpx.HTTPError):
        await disturbed.finish()
    await asyncio.gather(*disturbed._tasks, return_exceptions=True)
    assert not any(stream.is_done for stream in disturbed.streams)
    await asyncio.gather(*(stream.resume(stack.url(other)) for stream in disturbed.streams))
    disturbed.assert_texts(expected)


async def test_a_frontend_that_is_the_detokenizer_too_killed_with_9(stack: RoleStack) -> None:
    while stack.roles:
        stack.roles.pop().stop()
    first = stack.start_front()
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    first.kill()
    other = stack.start_front()
    await asyncio.gather(*disturbed._tasks, return_exceptions=True)
    assert not any(stream.is_done for stream in disturbed.streams)
    await stack.wait_ready(1)
    await asyncio.gather(*(stream.resume(stack.url(other)) for stream in disturbed.streams))
    disturbed.assert_texts(expected)
    assert other.stop() < 5


async def test_nats_server_killed_with_9_and_started_again(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    assert isinstance(stack.nats, NatsServer)
    stack.nats.pause()  # what is written to it now is lost
    await asyncio.sleep(0.3)
    stack.nats.kill()
    await asyncio.sleep(0.5)
    stack.nats.start()
    await disturbed.finish()
    disturbed.assert_texts(expected)
    await stack.until_queued(0)


async def test_a_stopped_worker_that_wakes_up_is_fenced(stack: RoleStack) -> None:
    for _ in range(2):  # slow ones: streams outlive the look for who makes them
        stack.start_worker(*scripted(0.06))
    await stack.wait_ready(2)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start(5)
    frozen = await holder_of(stack, disturbed.streams[0])
    frozen.freeze()
    assert not disturbed.streams[0].is_done, "too late to freeze its worker"
    await disturbed.finish()  # the other worker has taken all of them over
    frozen.thaw()
    disturbed.assert_texts(expected)
    await stack.until_queued(0)
    assert frozen.is_alive
    await until_fenced(stack)


async def until_fenced(stack: RoleStack) -> None:
    """Until what a worker wrote of a request that it has lost was read, and did not count."""
    roles = stack.cluster.bucket(stack.cluster.subjects.roles_bucket)
    async for _ in Looks(60):
        if any(decode(RoleCard, entry.value).num_fenced for entry in await roles.entries()):
            return


@pytest.mark.nightly  # by day: whose tokens they are, below
async def test_a_stopped_worker_wakes_up_while_its_streams_run_elsewhere(
    stack: RoleStack,
) -> None:
    for _ in range(2):
        stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    num_tokens = 350
    expected = await expected_texts(stack, num_tokens)
    disturbed = Disturbed(stack, num_tokens)
    await disturbed.start()
    workers = {stream.rid: await worker_of(stack, stream) for stream in disturbed.streams}
    frozen_name = workers[disturbed.streams[0].rid]
    frozen = await holder_of(stack, disturbed.streams[0])
    frozen.freeze()
    frozen.engine().suspend()
    for stream in disturbed.streams:
        if workers[stream.rid] == frozen_name:
            await until_elsewhere(stack, stream, frozen_name)
            await stream.wait_for_tokens(stream.position + 15)
    frozen.engine().resume()
    frozen.thaw()
    await disturbed.finish()
    disturbed.assert_texts(expected)
    await stack.until_queued(0)


async def until_elsewhere(stack: RoleStack, stream: Stream, worker: str) -> None:
    """Until another one than this worker makes its tokens."""
    async for _ in Looks(60):
        if await worker_of(stack, stream) != worker:
            return


async def test_tokens_of_a_woken_worker_never_mix_with_its_successors(stack: RoleStack) -> None:
    """The two workers make different tokens: each stream may go over once, and never back."""
    ranges = [range(300, 700), range(700, 1100)]
    workers = [
        stack.start_worker(*SCRIPTED[:-4], *token_range(ids.start, ids.stop)) for ids in ranges
    ]
    await stack.wait_ready(2)
    streams = [IdStream() for _ in range(NUM_STREAMS)]
    running = [
        asyncio.create_task(stream.post(stack.url(), seed, num_tokens=350))
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_ids(20)
    (number,) = [place for place, ids in enumerate(ranges) if streams[0].ids[-1] in ids]
    frozen, own_ids = workers[number], ranges[number]
    frozen.freeze()
    frozen.engine().suspend()
    for stream in [stream for stream in streams if stream.ids[-1] in own_ids]:
        await stream.wait_for_id_of(ranges[1 - number])
        await stream.wait_for_ids(len(stream.ids) + 30)
    frozen.engine().resume()
    frozen.thaw()
    async with asyncio.timeout(60):
        await asyncio.gather(*running)
    for stream in streams:
        assert len(stream.ids) == 350
        makers = [token_id in own_ids for token_id in stream.ids]
        assert makers == sorted(makers, reverse=True), "tokens of the frozen worker came again"
        assert stream.finish_type == "length"


async def test_a_draining_worker_hands_over_within_a_second(stack: RoleStack) -> None:
    first, _ = stack.start_worker(*SCRIPTED), stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    expected = await expected_texts(stack)
    disturbed = Disturbed(stack)
    await disturbed.start()
    seconds = await asyncio.to_thread(first.stop)
    await disturbed.finish()
    disturbed.assert_texts(expected)
    assert seconds < 2
    assert max(stream.max_gap_s for stream in disturbed.streams) < 1


@pytest.mark.parametrize(
    ("temperature", "drafts"),
    [
        (0, ()),
        (0.8, ("--draft-model", str(DEMO_MODEL))),
        pytest.param(0.8, (), marks=pytest.mark.nightly),
    ],
)
async def test_a_real_model_goes_on_with_the_same_tokens(
    stack: RoleStack, temperature: float, drafts: tuple[str, ...]
) -> None:
    """Also where a draft model guesses, as none does for what is expected."""
    plain = stack.start_worker(*REAL_ENGINE)
    await stack.wait_ready(1)
    fields: dict[str, Any] = {"temperature": temperature, "seed": 7, "max_tokens": 120}
    undisturbed = await run_stream(stack.url(), **fields)
    first = plain
    if drafts:
        first = stack.start_worker(*REAL_ENGINE, *drafts)
        await stack.wait_ready(2)
        await asyncio.to_thread(plain.stop)
    stream = Stream()
    running = asyncio.create_task(stream.post(stack.url(), completion_body(**fields)))
    await stream.wait_for_tokens(20)
    first.kill()
    stack.start_worker(*REAL_ENGINE, *drafts)
    await asyncio.wait_for(running, 60)
    assert stream.text == undisturbed.text
    assert stream.is_done


async def test_a_request_waits_for_the_first_worker(stack: RoleStack) -> None:
    await stack.wait_ready(0)
    stream = Stream()
    running = asyncio.create_task(stream.post(stack.url(), completion_body(max_tokens=5)))
    await time_to_err(1)
    assert not running.done()
    stack.start_worker(*SCRIPTED)
    await asyncio.wait_for(running, 60)
    assert stream.is_done
    assert stream.position == 5


async def test_a_client_that_goes_away_ends_its_request(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    stream = Stream()
    running = asyncio.create_task(stream.post(stack.url(), completion_body(max_tokens=400)))
    await stream.wait_for_tokens(5)
    assert await stack.num_queued() == 1
    running.cancel()
    await stack.until_queued(0, 4)  # by itself it runs for 8 s


async def test_a_non_streaming_client_that_goes_away_ends_its_request(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    body = completion_body(max_tokens=400, stream=False)
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{stack.url()}/v1/completions", json=body, timeout=1)
    await stack.until_queued(0, 4)  # by itself it runs for 8 s


async def test_the_whole_answer_equals_the_folded_stream(stack: RoleStack) -> None:
    stack.start_worker(*REAL_ENGINE)
    await stack.wait_ready(1)
    streamed = await run_stream(stack.url(), max_tokens=60)
    async with httpx.AsyncClient() as client:
        body = completion_body(max_tokens=60, stream=False)
        response = await client.post(f"{stack.url()}/v1/completions", json=body, timeout=30)
    assert response.status_code == 200
    assert response.json()["model"] == MODEL_NAME
    choice = response.json()["choices"][0]
    assert choice["text"] == streamed.text
    assert choice["finish_reason"] == streamed.finish_reason
