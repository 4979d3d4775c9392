"""Requests that are offered to the holder of their prefix, while that one dies, stops or leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, run_stream
from tests.nats_server import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

PROMPTS = [f"Story number {number}. " + "Once upon a time there was a fox. " * 20
           for number in range(8)]  # fmt: skip
NUM_TOKENS = 30


class Pair:
    """Two workers that have told each other what they have."""

    def __init__(self, stack: RoleStack) -> None:
        self.stack = stack
        self._shift = 0
        self._ports = [free_port(), free_port()]
        self.workers = [
            stack.start_worker(*SCRIPTED, "--metrics-port", str(port)) for port in self._ports
        ]

    async def run_all(self) -> list[str]:
        """One stream of each prompt, all at once; the texts."""
        # The server gives them to the workers in turn: each time they begin with another one.
        self._shift += 1
        ordered = PROMPTS[self._shift :] + PROMPTS[: self._shift]
        streams = await asyncio.gather(*map(self.run, ordered))
        texts = {prompt: stream.text for prompt, stream in zip(ordered, streams, strict=True)}
        return [texts[prompt] for prompt in PROMPTS]

    async def run(self, prompt: str) -> Stream:
        fields = {"prompt": prompt, "max_tokens": NUM_TOKENS, "seed": 1}
        stream = await run_stream(self.stack.url(), **fields)
        assert stream.finish_reason == "length"
        return stream

    async def count(self, name: str) -> int:
        """Summed over the workers that are left."""
        total = 0.0
        async with httpx.AsyncClient() as client:
            for worker, port in zip(self.workers, self._ports, strict=True):
                if worker.is_alive:
                    page = await client.get(f"http://127.0.0.1:{port}/metrics")
                    lines = [line for line in page.text.splitlines() if f"_{name}_total{{" in line]
                    total += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        return int(total)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        pair = Pair(stack)
        await stack.wait_ready(2)
        yield pair


async def test_offered_requests_have_the_same_text(pair: Pair) -> None:
    expected = await pair.run_all()
    assert await pair.count("offers_made") == 0
    for _ in range(3):
        assert await pair.run_all() == expected
    assert await pair.count("offers_taken") > 0
    assert await pair.count("redeliveries") == 0
    await pair.stack.until_queued(0)


@pytest.mark.parametrize(
    "fault", ["kill", pytest.param("freeze", marks=pytest.mark.nightly), "stop"]
)
async def test_every_offered_request_is_answered_once(pair: Pair, fault: str) -> None:
    first: RoleProcess = pair.workers[0]
    expected = await pair.run_all()
    running = [asyncio.create_task(pair.run(prompt)) for prompt in PROMPTS]
    await asyncio.sleep(0)  # the requests are on their way
    await asyncio.to_thread(getattr(first, fault))
    more = await pair.run_all()
    texts = [stream.text for stream in await asyncio.gather(*running)]
    assert texts == expected
    assert more == expected
    if fault == "freeze":
        first.thaw()
        assert first.is_alive
        assert await pair.run_all() == expected
    assert await pair.count("offers_made") > 0
    await pair.stack.until_queued(0)
