"""What a client may not reach: others' requests, request ids of its choice, files."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from shared.subjects import is_rid, new_rid
from tests.frontend.conftest import RunningFrontend, Stack

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
MINE = {"Authorization": "Bearer mine"}
OTHERS = {"Authorization": "Bearer another's"}
PATHS = (
    "../x",
    "../../etc/passwd",
    "/etc/passwd",
    "./tiny",
    "tiny/../tiny",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "C:\\x",
    "~/x",
    "tiny\x00",
    "jf.own.0.*",
)


def of_rid(event_id: str) -> dict[str, Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]]:
    """Every HTTP request that names a request."""
    rid = event_id.split(".")[0]
    seen = {"Last-Event-ID": event_id}
    return {
        "stream": lambda c: c.get(f"/v1/streams/{rid}"),
        "whole": lambda c: c.get(f"/v1/streams/{rid}", params={"stream": "false"}),
        "header": lambda c: c.get(f"/v1/streams/{rid}", headers=seen),
        "query": lambda c: c.get(f"/v1/streams/{rid}", params={"last_event_id": event_id}),
        "post": lambda c: c.post(CHAT, json=BODY, headers=seen),
        "post elsewhere": lambda c: c.post("/v1/completions", json={}, headers=seen),
        "path": lambda c: c.get(f"/v1/streams/{rid}/path"),
        "abort": lambda c: c.post("/abort_request", json={"rid": rid}),
        "erase": lambda c: c.delete(f"/v1/streams/{rid}"),
    }


def over_nats(event_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The same over NATS."""
    rid = event_id.split(".")[0]
    return [
        ("resume", {"rid": rid}),
        ("resume", {"rid": rid, "stream": False}),
        ("resume", {"event_id": event_id}),
        ("abort", {"rid": rid}),
        ("erase", {"rid": rid}),
    ]


async def assert_unknown_to_others(stack: Stack, running: RunningFrontend, event_id: str) -> None:
    async with running.client(headers=OTHERS) as client:
        for name, send in of_rid(event_id).items():
            answer = await send(client)
            assert answer.status_code == 404, name
            assert answer.json()["error"]["code"] == "stream_not_found", name
    for subject, body in over_nats(event_id):
        service = running.frontend.process.config.service_name
        reply = await stack.caller.request(
            f"{service}.{subject}", json.dumps(body).encode(), timeout=10, headers=OTHERS
        )
        assert (reply.headers or {})["Nats-Service-Error-Code"] == "404", (subject, body)


@pytest.mark.integration
async def test_anothers_request_is_404_on_every_way_to_it(stack: Stack) -> None:
    """Queued, running and finished; on its own frontend and on another."""
    gate = asyncio.Event()
    stack.say("Hello", ", world", gate=gate)
    keys = ("mine", "another's")
    own = await stack.start_frontend(api_key=keys, service_name="own")
    other = await stack.start_frontend(api_key=keys, service_name="other")
    stack.backend.hold.clear()
    async with (
        own.client(headers=MINE) as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        event_id = f"{response.headers['x-request-id']}.0.0.00000000"
        for running in (own, other):
            await assert_unknown_to_others(stack, running, event_id)
        stack.backend.hold.set()
        lines = response.aiter_lines()
        async for line in lines:
            if "Hello" in line:
                break
        for running in (own, other):
            await assert_unknown_to_others(stack, running, event_id)
        gate.set()
        rest = [line async for line in lines]
    assert any("world" in line for line in rest)
    for running in (own, other):
        await assert_unknown_to_others(stack, running, event_id)
        async with running.client(headers=MINE) as client:
            answer = await client.get(f"/v1/streams/{event_id.split('.')[0]}?stream=false")
            assert answer.json()["choices"][0]["message"]["content"] == "Hello, world"


def test_request_ids_come_from_the_systems_randomness() -> None:
    random.seed(1)
    first = new_rid()
    random.seed(1)
    assert is_rid(first)
    assert new_rid() != first


@pytest.mark.integration
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
async def test_nobody_chooses_a_request_id(stack: Stack, path: str) -> None:
    running = await stack.start_frontend()
    wish = "f" * 32
    bodies = {CHAT: BODY, "/v1/completions": {"model": "tiny", "prompt": "Hi"}}
    body = {**bodies.get(path, {"text": "Hi"}), "rid": wish, "id": wish, "request_id": wish}
    async with running.client(headers={"X-Request-Id": wish}) as client:
        answer = await client.post(path, json=body)
    text = answer.text.replace(f"'{wish}'", "")
    if path == "/generate":  # SGLang's `rid`: what the client calls it, and nobody else
        text = text.replace(f'"meta_info":{{"id":"{wish}"', "")
    assert wish not in text
    assert wish not in stack.backend.runs
    if answer.status_code == 200:
        assert answer.headers["x-request-id"] != wish
        assert is_rid(answer.headers["x-request-id"])


class OpenedFiles:
    """Paths that this process opens or lists, while somebody looks. The hook stays for ever."""

    def __init__(self) -> None:
        self.found: list[str] | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.found is not None and event in ("open", "os.listdir", "os.scandir", "os.open"):
            self.found.append(f"{event} {args[0]!r}")


@pytest.fixture(scope="module")
def opened() -> OpenedFiles:
    return OpenedFiles()


@pytest.mark.integration
async def test_a_model_name_opens_no_file(stack: Stack, opened: OpenedFiles) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200  # all is loaded
        opened.found = []
        try:
            for name in PATHS:
                for path, body in (
                    (CHAT, BODY),
                    ("/v1/completions", {"prompt": "Hi"}),
                    ("/v1/embeddings", {"input": "Hi"}),
                    ("/generate", {"text": "Hi"}),
                ):
                    answer = await client.post(path, json={**body, "model": name})
                    assert answer.status_code == 404, (path, name, answer.text)
                    assert answer.json()["error"]["code"] == "model_not_found", (path, name)
                answer = await client.get(f"/v1/models/{quote(name, safe='')}")
                assert answer.status_code == 404, name
            assert opened.found == []
        finally:
            opened.found = None
    opened.found = []
    open(__file__).close()  # noqa: ASYNC230 - the hook sees it
    assert len(opened.found) == 1
    opened.found = None
