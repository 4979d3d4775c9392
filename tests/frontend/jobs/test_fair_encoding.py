"""Texts of real sizes, sent by one tenant: what another one waits meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.eventually import eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.tiny_model import make_bundle, register

NUM_TEXTS = 10
TEXT = "Once upon a time. " * (8_000_000 // 18)
LONG_CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi there. " * 300}]}


async def start(stack: Stack, tmp_path: Path) -> RunningFrontend:
    """Of a model so long that eight megabytes fit."""
    card = msgspec.structs.replace(stack.card, max_context_len=10_000_000)
    await register(stack.cluster, make_bundle(), card)
    path = tmp_path / "keys.json"
    tenants = [{"id": name, "keys": [{"key": name}]} for name in "ab"]
    path.write_text(json.dumps({"tenants": tenants}))
    return await stack.start_frontend(api_keys_file=path)


def client_of(running: RunningFrontend, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=running.url, timeout=300, headers={"Authorization": f"Bearer {key}"}
    )


async def chat_s(client: httpx.AsyncClient) -> float:
    started = time.monotonic()
    answer = await client.post("/v1/chat/completions", json=LONG_CHAT)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - started


async def until_busy(running: RunningFrontend) -> None:
    """The texts have come, and threads work on them."""
    await eventually(lambda: running.frontend.process.encoder._threads._num_free == 0)


BODIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": TEXT},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"model": "tiny", "prompt": TEXT, "truncate_prompt_tokens": 9_999_000},
}


@pytest.mark.integration
@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        *(
            pytest.param(path, marks=pytest.mark.nightly)
            for path in ("/tokenize", "/v1/messages/count_tokens")
        ),
    ],
)
async def test_a_chat_does_not_wait_for_the_long_texts_of_another_tenant(
    stack: Stack, tmp_path: Path, path: str
) -> None:
    running = await start(stack, tmp_path)
    async with client_of(running, "a") as large, client_of(running, "b") as small:
        await chat_s(small)  # the tokenizer is loaded
        posts = [asyncio.create_task(large.post(path, json=BODIES[path])) for _ in range(NUM_TEXTS)]
        await until_busy(running)
        waited = [await chat_s(small) for _ in range(3)]
        num_waiting = sum(not post.done() for post in posts)
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        assert num_waiting, "the long texts must still be on their way"
        assert max(waited) < 3, waited
        await chat_s(large)  # what its client has left is not encoded before this
