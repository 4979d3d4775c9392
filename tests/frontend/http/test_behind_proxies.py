"""Clients behind proxies that hold answers back and cut connections on which nothing passes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from frontend.config import FrontendConfig
from tests.anthropic_sdk import anthropic_sdk
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script
from tests.frontend.sse import SseEvent, sse_events, text_of
from tests.http_proxy import HttpProxy, ProxyRules
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

CHAT = "/v1/chat/completions"
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": "Hi"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "stream": True}
STREAMS: dict[str, dict[str, Any]] = {
    CHAT: BODY,
    "/v1/completions": {"model": "tiny", "prompt": "Hi", "stream": True},
    "/v1/responses": {"model": "tiny", "input": "Hi", "stream": True},
    "/v1/messages": {**BODY, "max_tokens": 9},
    "/generate": {"text": "Hi", "stream": True},
}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)
# What providers cut at, and the default of the pings, both divided by 60.
IDLE_S = 1.0
PING_S = FrontendConfig().ping_interval_s / 60
KEYED = {"Idempotency-Key": "order-7", "X-Resume-Grace": "20"}


def test_two_pings_may_be_late_before_a_cut_at_60_s() -> None:
    assert 3 * FrontendConfig().ping_interval_s < 60


@pytest.mark.parametrize("route", STREAMS)
async def test_a_proxy_that_buffers_lets_streams_through_at_once(stack: Stack, route: str) -> None:
    gate = asyncio.Event()
    stack.say("~", "^", gate=gate)  # of a response each token is an event
    running = await stack.start_frontend()
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(buffer_bytes=1 << 20)) as proxy,
        httpx.AsyncClient(base_url=proxy.url, timeout=20) as client,
        client.stream("POST", route, json=STREAMS[route]) as response,
    ):
        lines = response.aiter_lines()
        while "~" not in await anext(lines):
            pass
        gate.set()
        assert any(["^" in line async for line in lines])


async def test_what_the_proxy_holds_back_is_late_and_right(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=0.7)
    running = await stack.start_frontend(ping_interval_s=PING_S)  # pings between the pieces
    rules = ProxyRules(buffer_bytes=700, buffer_s=0.25, obeys=False)
    async with (
        HttpProxy(running.frontend.process.port, rules) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", timeout=20) as client,
    ):
        stream = await client.chat.completions.create(**BODY)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(stack.backend.runs) == 1


@pytest.mark.parametrize("route", STREAMS)
async def test_a_queued_stream_outlives_an_idle_cut(stack: Stack, route: str) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend(ping_interval_s=PING_S)
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(idle_s=IDLE_S)) as proxy,
        httpx.AsyncClient(base_url=proxy.url, timeout=20) as client,
        client.stream("POST", route, json=STREAMS[route]) as response,
    ):
        reading = asyncio.create_task(response.aread())
        await time_to_err(3 * IDLE_S)
        stack.backend.hold.set()
        text = (await reading).decode()
        assert (proxy.num_cut, proxy.num_timed_out) == (0, 0)
    assert "world" in text
    assert len(stack.backend.runs) == 1


async def test_without_pings_the_proxy_would_cut(stack: Stack) -> None:
    """So that the tests above prove something."""
    stack.backend.hold.clear()
    running = await stack.start_frontend(ping_interval_s=60.0)
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(idle_s=IDLE_S)) as proxy,
        httpx.AsyncClient(base_url=proxy.url, timeout=20) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=BODY)
        assert proxy.num_cut == 1


async def test_a_stream_that_two_proxies_hold_and_cut_is_finished_by_its_key(stack: Stack) -> None:
    """One holds the pings back, so that the other cuts: the same POST goes on where it was."""
    stack.say(*PIECES, delay_s=0.8)
    running = await stack.start_frontend(ping_interval_s=PING_S)
    holding = ProxyRules(buffer_bytes=1 << 20, buffer_s=1.3, obeys=False)
    seen: list[SseEvent] = []
    async with (
        HttpProxy(running.frontend.process.port, holding) as inner,
        HttpProxy(inner.port, ProxyRules(idle_s=IDLE_S)) as outer,
        httpx.AsyncClient(base_url=outer.url, timeout=20) as client,
        asyncio.timeout(40),
    ):
        while not seen or seen[-1].data != "[DONE]":
            headers = {"Last-Event-ID": seen[-1].event_id} if seen else {}
            try:
                async with client.stream(
                    "POST", CHAT, json=BODY, headers=KEYED | headers
                ) as response:
                    if response.status_code == 504:
                        continue
                    assert response.status_code == 200
                    async for event in sse_events(response):
                        seen.append(event)  # noqa: PERF401  # what came before a cut counts
            except httpx.RemoteProtocolError:
                continue
        assert outer.num_timed_out + outer.num_cut > 0
    assert text_of(seen) == TEXT
    assert len(stack.backend.runs) == 1


async def test_openais_client_with_a_key_gets_a_long_answer_past_cuts(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=IDLE_S)
    running = await stack.start_frontend()
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(idle_s=IDLE_S)) as proxy,
        AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key="none", timeout=20, max_retries=8
        ) as client,
    ):
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], extra_headers=KEYED
        )
        assert proxy.num_timed_out > 0
    assert answer.choices[0].message.content == TEXT
    (run,) = stack.backend.runs.values()
    assert answer._request_id == run.request.rid
    assert stack.backend.num_served == 1


async def test_anthropics_client_with_a_key_gets_a_long_answer_past_cuts(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=IDLE_S)
    running = await stack.start_frontend()
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(idle_s=IDLE_S)) as proxy,
        anthropic_sdk().AsyncAnthropic(
            base_url=proxy.url, api_key="none", timeout=20, max_retries=8
        ) as client,
    ):
        answer = await client.messages.create(
            model="tiny",
            max_tokens=9,
            messages=[{"role": "user", "content": "Hi"}],
            extra_headers=KEYED,
        )
        assert proxy.num_timed_out > 0
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == TEXT
    assert len(stack.backend.runs) == stack.backend.num_served == 1


async def test_without_a_key_each_repetition_is_a_generation_and_the_last_is_ended(
    stack: Stack,
) -> None:
    stack.answer(lambda request: Script(["a"], never_finish=True))
    running = await stack.start_frontend()
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules(idle_s=IDLE_S)) as proxy,
        AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key="none", timeout=20, max_retries=1
        ) as client,
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            await client.completions.create(model="tiny", prompt="Hi")
        assert caught.value.status_code == 504
        assert proxy.num_requests == len(stack.backend.runs) == 2
    await stack.until_queued(0)
    assert sorted(stack.backend.cancelled) == sorted(stack.backend.runs)
