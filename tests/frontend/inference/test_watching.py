"""Who looks on at a stream sees all of it, and nothing ends or goes on for their sake."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from jetflock.commands.tail import PROGRAM, Watching, new_text
from jetflock.running.http_service import HttpService
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.sse import SseEvent, sse_events, text_of

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)


async def watch(running: RunningFrontend, rid: str, seen: list[SseEvent]) -> None:
    """From the beginning to the end."""
    async with running.client() as client:
        query = {"watch": "true"}
        async with client.stream("GET", f"/v1/streams/{rid}", params=query) as response:
            assert response.status_code == 200
            async for event in sse_events(response):
                seen.append(event)  # noqa: PERF401 (others look at what has come)


def tail_of(running: RunningFrontend, rid: str) -> str:
    """What `jetflock tail` would print, beside the log of the frontends here."""
    with HttpService([running.url], None) as http:
        return "".join(new_text(*event, 0, 0) for event in Watching(http, rid))


async def test_many_look_on_for_one_message_a_frame(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with (
        first.client() as client,
        asyncio.TaskGroup() as tasks,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        rid = response.headers["x-request-id"]
        events = sse_events(response)
        seen = [await anext(events), await anext(events)]
        looks: list[list[SseEvent]] = [[], [], [], []]
        leaver = tasks.create_task(watch(second, rid, looks[0]))
        for running, look in zip((second, second, first), looks[1:], strict=True):
            tasks.create_task(watch(running, rid, look))
        tail = tasks.create_task(asyncio.to_thread(tail_of, second, rid))
        await eventually(lambda: all(len(look) >= 2 for look in looks))
        leaver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaver
        whole = second.client().get(f"/v1/streams/{rid}", params={"watch": "1", "stream": "false"})
        answer = tasks.create_task(whole)
        assert not second.frontend.process.ledger.here
        attached = stack.cluster.bucket(stack.cluster.subjects.attached_bucket)
        assert await attached.get(rid) is None
        gate.set()
        seen += [event async for event in events]
    assert [text_of(each) for each in (seen, *looks[1:])] == [TEXT] * 4
    assert (await answer).json()["choices"][0]["message"]["content"] == TEXT
    assert await tail == TEXT
    argv = [rid, "--url", second.url, "--json"]
    await asyncio.to_thread(PROGRAM.run, argv)  # of what is over, too
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert text_of([SseEvent("", line) for line in lines]) == TEXT
    subjects = stack.backend.runs[rid].subjects
    assert len(subjects) == len(set(subjects)) == 2  # of the frontends, however many look on
    assert await stack.cluster.ownership.last(rid) is None


async def test_a_request_ends_with_its_client_whoever_looks_on(stack: Stack) -> None:
    stack.answer(lambda _: Script(PIECES, never_finish=True))
    first, second = await stack.start_frontend(), await stack.start_frontend()
    looks: list[list[SseEvent]] = [[], []]
    async with asyncio.TaskGroup() as tasks:
        async with first.client() as client, client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            events = sse_events(response)  # kept: who drops it hangs up
            await anext(events)
            for running, look in zip((first, second), looks, strict=True):
                tasks.create_task(watch(running, rid, look))
            await eventually(lambda: all(text_of(look) == TEXT for look in looks))

        async def is_ended() -> bool:
            return await stack.cluster.ownership.last(rid) is not None

        await eventually_async(is_ended)
    for look in looks:
        assert json.loads(look[-1].data)["error"]["code"] == "cancelled"
