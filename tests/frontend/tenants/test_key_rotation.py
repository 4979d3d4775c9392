"""A tenant changes its keys, and has all that it had."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.eventually import Looks
from tests.frontend.conftest import Stack
from tests.frontend.tenants.test_strangers import of_rid

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
OTHERS = {"Authorization": "Bearer other"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def write_keys(path: Path, *keys: str) -> None:
    tenants = [
        {"id": "mine", "keys": [{"key": key} for key in keys], "max_concurrent": 8},
        {"id": "other", "keys": [{"key": "other"}]},
    ]
    path.write_text(json.dumps({"tenants": tenants}))


async def until_status(client: httpx.AsyncClient, key: str, status: int) -> None:
    async for _ in Looks():
        if (await client.get("/v1/models", headers=bearer(key))).status_code == status:
            return


Look = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


async def make_things(client: httpx.AsyncClient) -> dict[str, Look]:
    """A request, a response, a file and a batch; and how each is read."""
    chat = await client.post(CHAT, json=BODY, headers={"Idempotency-Key": "k"})
    assert chat.status_code == 200, chat.text
    response = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": BODY}
    file = await client.post(
        "/v1/files", files={"file": ("in.jsonl", json.dumps(line))}, data={"purpose": "batch"}
    )
    batch = await client.post(
        "/v1/batches",
        json={
            "input_file_id": file.json()["id"],
            "endpoint": CHAT,
            "completion_window": "24h",
        },
    )
    paths = {
        "response": f"/v1/responses/{response.json()['id']}",
        "file": f"/v1/files/{file.json()['id']}/content",
        "batch": f"/v1/batches/{batch.json()['id']}",
    }
    event_id = f"{chat.headers['x-request-id']}.0.0.00000000"
    looks: dict[str, Look] = {
        name: lambda client, path=path: client.get(path)  # type: ignore[misc]
        for name, path in paths.items()
    }
    stream = of_rid(event_id)
    return looks | {name: stream[name] for name in ("stream", "whole", "path")}


@pytest.mark.integration
async def test_a_new_key_has_what_the_old_one_made(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, "old")
    running = await stack.start_frontend(api_keys_file=path)
    async with running.client(headers=bearer("old")) as client:
        looks = await make_things(client)
        again = await client.post(CHAT, json=BODY, headers={"Idempotency-Key": "k"})
    num_runs = len(stack.backend.runs)
    async with running.client() as client:
        write_keys(path, "old", "new")
        await until_status(client, "new", 200)
        assert (await client.get("/v1/models", headers=bearer("old"))).status_code == 200
        write_keys(path, "new")
        await until_status(client, "old", 401)
    async with running.client(headers=bearer("new")) as client:
        for name, look in looks.items():
            assert (await look(client)).status_code == 200, name
        for listing in ("/v1/files", "/v1/batches"):
            assert (await client.get(listing)).json()["data"], listing
        joined = await client.post(CHAT, json=BODY, headers={"Idempotency-Key": "k"})
        assert joined.headers["x-request-id"] == again.headers["x-request-id"]
        await until_batch_is_over(client, looks["batch"])
    async with running.client(headers=OTHERS) as client:
        for name, look in looks.items():
            assert (await look(client)).status_code == 404, name
    assert len(stack.backend.runs) <= num_runs + 1, "only the batch's line may be new"


async def until_batch_is_over(client: httpx.AsyncClient, look: Look) -> None:
    """Its tenant is found by id, whichever key made it."""
    async for _ in Looks():
        if (await look(client)).json()["status"] == "completed":
            return


@pytest.mark.integration
async def test_keys_of_a_tenant_share_its_limits(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    tenant = {"id": "a", "keys": [{"key": "x"}, {"key": "y"}], "requests_per_minute": 2}
    path.write_text(json.dumps({"tenants": [tenant]}))
    running = await stack.start_frontend(api_keys_file=path)
    async with running.client() as client:
        answers = [await client.post(CHAT, json=BODY, headers=bearer(key)) for key in "xyxy"]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
