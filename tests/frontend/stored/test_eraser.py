"""What frontends delete, they delete by a user of their own; the one of all else may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.config import FrontendConfig
from frontend.stored.erasing.erasing_service import check_right_to_erase
from shared.cluster import open_cluster
from shared.errors import ConfigError
from shared.nats_client.role_client import RoleClient
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.users_stack import open_users_stack, states
from tests.nats_users import NatsUsers

pytestmark = pytest.mark.integration

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def users(tmp_path: Path) -> NatsUsers:
    return NatsUsers(tmp_path / "nats", ["client"])


@pytest.fixture
async def stack(users: NatsUsers) -> AsyncIterator[Stack]:
    async with open_users_stack(users, "client") as stack:
        yield stack


async def num_stored(stack: Stack, stream: str) -> int:
    return int((await states(stack))[stream]["messages"])


async def test_all_that_deletes_does(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        await delete_a_response(stack, client)
        await delete_a_file(stack, client)
        await erase_a_request(stack, client)
        await leave_the_queue(stack, client)
    assert refusals_of(running) == {""}


def refusals_of(running: RunningFrontend) -> set[str]:
    """What the server did not let its connections do."""
    js = running.frontend.side.streams.cluster.js
    assert js.nc is not js.erasing_nc
    return {nc.last_refusal for nc in (js.nc, js.erasing_nc) if isinstance(nc, RoleClient)}


async def delete_a_response(stack: Stack, client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
    path = f"/v1/responses/{made.json()['id']}"
    assert (await client.delete(path)).status_code == 200
    assert (await client.get(path)).status_code == 404
    assert await num_stored(stack, "jf_RESPONSES") == 0


async def delete_a_file(stack: Stack, client: httpx.AsyncClient) -> None:
    file = {"file": ("a.jsonl", b"x" * 300_000)}
    made = await client.post("/v1/files", data={"purpose": "batch"}, files=file)
    assert made.status_code == 200, made.text
    path = f"/v1/files/{made.json()['id']}"
    assert (await client.get(f"{path}/content")).content == b"x" * 300_000
    assert (await client.delete(path)).status_code == 200
    assert await num_stored(stack, "KV_jf_files") == 0


async def erase_a_request(stack: Stack, client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/chat/completions", json=CHAT, headers={"Idempotency-Key": "k"})
    assert made.status_code == 200, made.text
    assert await num_stored(stack, "KV_jf_idempotency") == 1
    num_results = await num_stored(stack, "jf_RESULTS")
    erased = await client.delete(f"/v1/streams/{made.headers['x-request-id']}")
    assert erased.status_code == 200, erased.text
    assert await num_stored(stack, "jf_RESULTS") == num_results - 1
    assert await num_stored(stack, "KV_jf_idempotency") == 0


async def leave_the_queue(stack: Stack, client: httpx.AsyncClient) -> None:
    await stack.until_queued(0)
    stack.backend.hold.clear()
    async with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}):
        await stack.until_queued(1)
    await stack.until_queued(0)


async def test_a_frontend_that_may_not_delete_does_not_start(
    users: NatsUsers, stack: Stack
) -> None:
    frontend, service = users.options("frontend"), users.options("service", "nats_eraser_")
    with pytest.raises(ConfigError, match=r"nats-user may not delete .*--nats-eraser-user"):
        await check(stack, **frontend)
    with pytest.raises(ConfigError, match=r"nats-eraser-user may not delete"):
        await check(stack, **frontend, **service)
    await check(stack, **frontend, **users.options("eraser", "nats_eraser_"))


async def check(stack: Stack, **options: Any) -> None:
    config = FrontendConfig(nats_url=stack.server.url, **options)
    async with open_cluster(config, "frontend") as cluster:
        await check_right_to_erase(cluster)


async def test_one_user_with_all_rights_needs_no_other(users: NatsUsers, stack: Stack) -> None:
    running = await stack.start_frontend(
        **{
            **users.options("admin"),
            **dict.fromkeys(("nats_eraser_user", "nats_eraser_password_file")),
        }
    )
    assert (
        running.frontend.side.streams.cluster.js.erasing_nc
        is running.frontend.side.streams.cluster.nc
    )
    async with running.client() as client:
        await delete_a_file(stack, client)
