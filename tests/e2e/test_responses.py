"""Every frontend is killed while responses run: a new one reads and streams them to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleProcess, RoleStack
from tests.eventually import Looks
from tests.frontend.response_events import check_events, check_response, events_of, folded

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_TOKENS = 350  # seven seconds: long enough for an orphan to be ended
BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "input": "Once upon a time",
    "max_output_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "temperature": 1.0,
}


async def finished(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    async for _ in Looks(60):
        response: dict[str, Any] = (await client.get(f"/v1/responses/{response_id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            break
    return response


async def test_responses_outlive_all_frontends(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        frontends = [stack.roles[0], stack.start_frontend()]
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        async with client_of(stack, frontends[0]) as client:
            conversation = (await client.post("/v1/conversations", json={})).json()["id"]
            background, unread = [
                (await client.post("/v1/responses", json={**BODY, **fields})).json()
                for fields in (
                    {"background": True, "conversation": conversation},
                    {"background": True},
                )
            ]
            body = {**BODY, "stream": True}
            async with client.stream("POST", "/v1/responses", json=body) as response:
                seen = await events_of(response, limit=20)
                for frontend in frontends:
                    frontend.kill()
        stack.roles.sort(key=lambda role: not role.is_alive)  # it asks the first one
        # What nobody reads is ended after a second, unless it is detached.
        survivor = stack.start_frontend("--orphan-wait-s", "1")
        await stack.wait_ready(1)
        async with client_of(stack, survivor) as client:
            streamed_id = seen[0]["response"]["id"]
            query = f"stream=true&starting_after={seen[-1]['sequence_number']}"
            url = f"/v1/responses/{streamed_id}?{query}"
            async with client.stream("GET", url) as response:
                events = seen + await events_of(response)
            polled = await finished(client, background["id"])
            url = f"/v1/conversations/{conversation}/items?order=asc"
            asked, said = (await client.get(url)).json()["data"]
            assert asked["content"][0]["text"] == BODY["input"]
            assert [said] == polled["output"]
            assert await finished(client, streamed_id) == events[-1]["response"]
        check_events(events)
        assert folded(events) == events[-1]["response"]
        for whole in (polled, events[-1]["response"]):
            check_response(whole)
            assert whole["status"] == "incomplete"
            assert whole["usage"]["output_tokens"] == NUM_TOKENS
        # Nobody has asked for the other one, and what the resume window keeps is gone.
        survivor.kill()
        stack.roles.sort(key=lambda role: not role.is_alive)
        await stack.until_queued(0)
        subjects = stack.cluster.subjects
        for stream in (subjects.results_stream, subjects.tokens_stream):
            await stack.cluster.js.api(f"STREAM.PURGE.{stream}")
        last = stack.start_frontend()
        await stack.wait_ready(1)
        async with client_of(stack, last) as client:
            whole = await finished(client, unread["id"])
            assert whole["usage"]["output_tokens"] == NUM_TOKENS
            url = f"/v1/responses/{streamed_id}?stream=true"
            async with client.stream("GET", url) as response:
                assert await events_of(response) == events


def client_of(stack: RoleStack, frontend: RoleProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url(frontend), timeout=60)
