"""The frontend that accepted a keyed request is killed: who sends it again gets the same text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.protocol.codec import decode
from shared.protocol.text import Done
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.frontend.sse import sse_events, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "prompt": "Once upon a time",
    "max_tokens": 100,
    "temperature": 1.0,
    "ignore_eos": True,
}
HEADERS = {"Idempotency-Key": "tale-1"}


async def test_a_killed_frontends_request_is_joined_elsewhere(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        doomed = stack.roles[0]
        survivor = stack.start_frontend()
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        async with httpx.AsyncClient(timeout=60, headers=HEADERS) as client:
            url = f"{stack.url(survivor)}/v1/completions"
            async with client.stream(
                "POST", f"{stack.url(doomed)}/v1/completions", json={**BODY, "stream": True}
            ) as response:
                rid = response.headers["x-request-id"]
                events = sse_events(response)
                seen = [await anext(events) for _ in range(20)]
                doomed.kill()
            answers = await asyncio.gather(*(client.post(url, json=BODY) for _ in range(5)))
        results, subjects = stack.cluster.js, stack.cluster.subjects
        done = [m async for m in results.direct_scan(subjects.results_stream, subjects.done("*"))]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-request-id"] for answer in answers} == {rid}
    (text,) = {answer.json()["choices"][0]["text"] for answer in answers}
    assert answers[0].json()["usage"]["completion_tokens"] == BODY["max_tokens"]
    assert text.startswith(text_of(seen))
    assert [decode(Done, message.data).rid for message in done] == [rid]
