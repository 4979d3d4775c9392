"""Who floods a frontend with what it refuses is sent away, over HTTP and NATS; nobody else is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.frontend.conftest import Stack
from tests.frontend.nats.test_nats_service import ask

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
KEYS = "tenants: [{id: annoying, keys: [{key: a}]}, {id: other, keys: [{key: b}]}]"
ANNOYING, OTHER = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
MESSAGE = {"role": "user", "content": "Hi"}
REFUSED = json.dumps({"model": "tiny", "messages": [MESSAGE] * 18_000}).encode()
NUM_CONNECTIONS = 8
MAX_ROUNDS = 60


async def test_refused_bodies_are_paid_for_by_who_sends_them(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEYS)
    running = await stack.start_frontend(api_keys_file=tmp_path / "keys")
    async with running.client() as client:

        async def refused() -> int:
            answer = await client.post(CHAT, content=REFUSED, headers=ANNOYING)
            return answer.status_code

        for _ in range(MAX_ROUNDS):
            statuses = await asyncio.gather(*(refused() for _ in range(NUM_CONNECTIONS)))
            if 429 in statuses:
                break
        assert set(statuses) <= {400, 429}
        good = {"model": "tiny", "messages": [MESSAGE]}
        sent_away = await client.post(CHAT, json=good, headers=ANNOYING)
        assert sent_away.status_code == 429
        assert sent_away.json()["error"]["code"] == "rate_limit_exceeded"
        assert "requests were refused" in sent_away.json()["error"]["message"]
        assert 1 <= int(sent_away.headers["retry-after"]) <= 61
        over_nats = await ask(stack, "chat.completions", good, ANNOYING)
        assert json.loads(over_nats.data)["error"]["code"] == "rate_limit_exceeded"
        taken = await client.post(CHAT, json=good, headers=OTHER)
        assert taken.status_code == 200, taken.text
