"""Streams whose events hold all text so far, while a worker and then a frontend are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.text.event_id import parse_event_id
from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import http_client
from tests.frontend.sse import SseEvent, sse_events

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

PARAMS = {"max_new_tokens": 250, "ignore_eos": True, "temperature": 0.8}
BODY: dict[str, Any] = {
    "text": ["Once upon a time", "A dragon"],
    "sampling_params": [{**PARAMS, "seed": 1}, {**PARAMS, "seed": 2}],
    "return_logprob": True,
}


async def test_they_grow_as_if_nothing_had_happened(tmp_path: Path) -> None:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        first, second = stack.roles[0], stack.start_frontend()
        worker, _ = stack.start_worker(*SCRIPTED), stack.start_worker(*SCRIPTED)
        await stack.wait_ready(2)
        async with http_client() as client:
            expected = (await client.post(f"{stack.url(second)}/generate", json=BODY)).json()
            events: list[SseEvent] = []
            with pytest.raises(httpx.TransportError):
                await read(client, f"{stack.url(first)}/generate", events, worker, first)
            rid, headers = events[0].event_id.partition(".")[0], last_id(events)
            url = f"{stack.url(second)}/v1/streams/{rid}"
            async with client.stream("GET", url, headers=headers) as response:
                assert response.status_code == 200
                events += [event async for event in sse_events(response)]
        assert events.pop().data == "[DONE]"
        check(events, expected)


async def read(
    client: httpx.AsyncClient, url: str, events: list[SseEvent], *victims: RoleProcess
) -> None:
    """One of them is killed after 60 tokens, the other after 150, of 500."""
    alive = list(zip((60, 150), victims, strict=True))
    async with client.stream("POST", url, json={**BODY, "stream": True}) as response:
        async for event in sse_events(response):
            events.append(event)
            marks = parse_event_id(event.event_id).marks
            if alive and sum(mark.position for mark in marks) >= alive[0][0]:
                alive.pop(0)[1].kill()


def last_id(events: list[SseEvent]) -> dict[str, str]:
    return {"Last-Event-ID": events[-1].event_id}


def check(events: list[SseEvent], expected: list[dict[str, Any]]) -> None:
    """Each event is a beginning of the whole answer, no shorter than the one before."""
    num_chars, num_ids = [0, 0], [0, 0]
    latest: dict[int, dict[str, Any]] = {}
    for event in events:
        told = json.loads(event.data)
        index, whole = told["index"], expected[told["index"]]
        assert whole["text"].startswith(told["text"])
        assert told["output_ids"] == whole["output_ids"][: len(told["output_ids"])]
        logprobs = told["meta_info"]["output_token_logprobs"]
        assert [item[1] for item in logprobs] == told["output_ids"]
        assert len(told["text"]) >= num_chars[index]
        assert len(told["output_ids"]) >= num_ids[index]
        num_chars[index], num_ids[index] = len(told["text"]), len(told["output_ids"])
        latest[index] = told
    for index, whole in enumerate(expected):
        assert latest[index]["text"] == whole["text"]
        assert latest[index]["output_ids"] == whole["output_ids"]
        assert latest[index]["meta_info"]["finish_reason"] == {"type": "length", "length": 250}
