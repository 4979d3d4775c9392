"""Everything of a tenant, or of a request, is erased: looked for in every byte of the store."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from openai import AsyncOpenAI

from shared.protocol.codec import decode_token_frame
from shared.protocol.log_records import End
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.forked_program import run_program
from tests.frontend.batch_calls import create, jsonl, line, until

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

POISON_TOKEN = 77
TENANTS = ("alice", "bob")
NUM_DIGITS = 40


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    keys = tmp_path / "keys.json"
    tenants = [{"id": name, "keys": [{"key": name}]} for name in TENANTS]
    keys.write_text(json.dumps({"tenants": tenants}))

    def flags(role: str) -> list[str]:
        return ["--api-keys-file", str(keys)] if role == "frontend" else []

    async with RoleStack(tmp_path, role_flags=flags) as running:
        running.start_worker(*SCRIPTED, "--scripted-poison-token", str(POISON_TOKEN))
        await running.wait_ready(1)
        yield running


@dataclass
class Tenant:
    """What one has asked, and what of it may stand in a file of the server."""

    name: str
    stack: RoleStack
    folder: Path  # of the server
    needles: dict[str, bytes] = field(default_factory=dict)
    rids: list[str] = field(default_factory=list)
    response_id: str = ""
    conversation_id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.name}"}

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.stack.url(), headers=self.headers, timeout=60)

    def text(self, what: str) -> str:
        """Of this tenant and use alone."""
        text = f"{what} of {self.name} and nobody else"
        self.needles[what] = text.encode()
        return text

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        async with self.http() as http:
            headers = {"Idempotency-Key": f"{path} {self.name}"}
            answer = await http.post(path, json={"model": MODEL_NAME, **body}, headers=headers)
        assert answer.status_code == 200, answer.text
        self.rids.append(answer.headers["x-request-id"])
        found: dict[str, Any] = answer.json()
        return found

    async def ask_everything(self) -> None:
        chat = [{"role": "user", "content": self.text("chat")}]
        answer = await self.post("/v1/chat/completions", messages=chat, max_tokens=30)
        self.needles["chat's answer"] = answer["choices"][0]["message"]["content"].encode()
        own = 400 + 50 * TENANTS.index(self.name)
        ids = [own + i % 40 for i in range(NUM_DIGITS)]
        await self.post("/v1/completions", prompt=ids, n=2, max_tokens=10, return_token_ids=True)
        self.needles["prompt"] = struct.pack(f"<{len(ids)}I", *ids)
        kept = await self.post("/v1/responses", input=self.text("response"), max_output_tokens=20)
        self.response_id = kept["id"]
        await self._converse()
        await self._run_batch()
        await self._die(own)

    async def _converse(self) -> None:
        items = [{"role": "user", "content": self.text("conversation")}]
        async with self.http() as http:
            answer = await http.post("/v1/conversations", json={"items": items})
        assert answer.status_code == 200, answer.text
        self.conversation_id = answer.json()["id"]

    async def _run_batch(self) -> None:
        content = jsonl(
            line(0, model=MODEL_NAME, prompt=self.text("batch line"), max_tokens=5, echo=True)
        )
        url = f"{self.stack.url()}/v1"
        async with AsyncOpenAI(base_url=url, api_key=self.name, timeout=60) as client:
            batch = await until(client, await create(client, content), "completed")
            assert batch.output_file_id is not None

    async def _die(self, own: int) -> None:
        ids = [own, POISON_TOKEN, *([own + 1] * NUM_DIGITS)]
        self.needles["dead letter"] = struct.pack(f"<{len(ids)}I", *ids)
        async with self.http() as http:
            answer = await http.post(
                "/v1/completions", json={"model": MODEL_NAME, "prompt": ids, "max_tokens": 5}
            )
        assert answer.json()["error"]["code"] == "poison", answer.text

    def left(self) -> set[str]:
        """What a file of the server holds."""
        files = [p.read_bytes() for p in self.folder.rglob("*.blk")]
        return {name for name, needle in self.needles.items() if any(needle in f for f in files)}


async def rids_in_log(stack: RoleStack) -> set[str]:
    js, subjects = stack.cluster.js, stack.cluster.subjects
    found = set()
    async for message in js.direct_scan(subjects.tokens_stream, f"{subjects.prefix}.tok.*.*"):
        found |= {entry.rid for entry in decode_token_frame(message.data).entries}
    return found


async def erase(stack: RoleStack, *argv: str) -> dict[str, Any]:
    done = await asyncio.to_thread(
        run_program, "jetflock", "admin", "erase", *argv, "--nats-url", stack.nats.url
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def erase_over_nats(tenant: Tenant) -> None:
    """One finished request, and its idempotency key."""
    told = []
    caller = await nats.connect(tenant.stack.nats.url)
    async with caller:
        for _ in "12":
            await tenant.post("/generate", text="Again", sampling_params={"max_new_tokens": 3})
            body = json.dumps({"rid": tenant.rids.pop()}).encode()
            answer = await caller.request("jetflock.erase", body, 20, headers=tenant.headers)
            told.append(json.loads(answer.data))
    first, second = told
    assert first == {"id": first["id"], "deleted": True, "gone_by": None}
    assert second == {**first, "id": second["id"]}
    assert first["id"] != second["id"], "the key stood for nothing any more"


async def test_a_tenant_is_erased_and_another_is_not(stack: RoleStack, tmp_path: Path) -> None:
    alice, bob = (Tenant(name, stack, tmp_path) for name in TENANTS)
    await alice.ask_everything()
    await bob.ask_everything()
    everything = {"response", "conversation", "batch line", "dead letter", "chat's answer"}
    before = bob.left()
    assert everything <= before
    assert everything <= alice.left()

    told = await erase(stack, "--tenant", "alice")
    kinds = ("chat", "choice", "choice", "response", "conversation", "batch line", "dead letter")
    assert told["num_requests"] == len(kinds)
    assert (told["num_batches"], told["num_files"]) == (1, 2)
    assert told["gone_by"] is None, "no frame was shared: nothing is left"
    assert alice.left() == set()
    assert bob.left() == before
    log = await rids_in_log(stack)
    assert log.isdisjoint(alice.rids)
    assert not log.isdisjoint(bob.rids)

    async with alice.http() as http:
        assert (await http.get("/v1/files")).json()["data"] == []
        assert (await http.get("/v1/batches")).json()["data"] == []
        assert (await http.get(f"/v1/responses/{alice.response_id}")).status_code == 404
        gone = await http.get(f"/v1/conversations/{alice.conversation_id}")
        assert gone.status_code == 404
        for rid in alice.rids:
            assert (await http.get(f"/v1/streams/{rid}?stream=false")).status_code == 404
    async with bob.http() as http:
        assert len((await http.get("/v1/files")).json()["data"]) == 2
        assert (await http.get(f"/v1/responses/{bob.response_id}")).status_code == 200
        kept = await http.get(f"/v1/conversations/{bob.conversation_id}")
        assert kept.status_code == 200
        for rid in bob.rids:
            assert (await http.get(f"/v1/streams/{rid}?stream=false")).status_code == 200
    await erase_over_nats(bob)
    again = await erase(stack, "--tenant", "alice")
    assert (again["num_requests"], again["num_files"]) == (0, 0)
    await alice.post("/v1/completions", prompt="It goes on.", max_tokens=3)


async def test_a_running_request_is_ended_and_what_others_have_a_part_in_is_told(
    stack: RoleStack,
) -> None:
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in TENANTS)
    mine, theirs = Stream(), Stream()
    body = completion_body(max_tokens=500)
    reading = [
        asyncio.create_task(stream.post(stack.url(), body | {"seed": seed}, **headers))
        for seed, (stream, headers) in enumerate(((mine, alice), (theirs, bob)))
    ]
    await mine.wait_for_tokens(10)
    await theirs.wait_for_tokens(10)
    async with httpx.AsyncClient(base_url=stack.url(), timeout=30) as http:
        stranger = await http.delete(f"/v1/streams/{mine.rid}", headers=bob)
        assert stranger.status_code == 404
        assert await mine.moves()
        now = time.time()
        answer = await http.delete(f"/v1/streams/{mine.rid}", headers=alice)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["id"], told["deleted"]) == (mine.rid, True)
        retention_s = stack.cluster.config.token_retention_s
        assert now + retention_s <= told["gone_by"] <= now + retention_s + 60
        await asyncio.wait_for(reading[0], 10)
        assert mine.error is not None
        assert mine.error["code"] == "cancelled", "its client has a last word"
        assert (await http.delete(f"/v1/streams/{mine.rid}", headers=alice)).status_code == 404
        again = await http.get(f"/v1/streams/{mine.rid}?stream=false", headers=alice)
        assert again.status_code == 404, "tokens without a claim are nobody's"
        assert await theirs.moves()
        ended = await http.post("/abort_request", json={"rid": theirs.rid}, headers=bob)
        assert ended.status_code == 200
    await asyncio.wait_for(reading[1], 10)
    await stack.until_queued(0)
    cluster, subjects = stack.cluster, stack.cluster.subjects
    [left] = await cluster.ownership.read(mine.rid)
    assert isinstance(left.record, End)
    assert left.record.reply is None
    assert await cluster.js.get_last(subjects.results_stream, subjects.done(mine.rid)) is None


async def test_a_batch_under_way_is_erased_and_its_driver_stops(stack: RoleStack) -> None:
    url = f"{stack.url()}/v1"
    lines = (line(i, model=MODEL_NAME, prompt="Once", max_tokens=100) for i in range(40))
    async with AsyncOpenAI(base_url=url, api_key="alice", timeout=60) as client:
        await until(client, await create(client, jsonl(*lines)), "in_progress")
        told = await erase(stack, "--tenant", "alice")
        assert told["num_batches"] == 1
        assert (await client.batches.list()).data == []
    await stack.until_queued(0)
    js, subjects = stack.cluster.js, stack.cluster.subjects
    info = await js.api(f"STREAM.INFO.{subjects.batch_stream}")
    assert info["state"]["messages"] == 0
    marks = stack.cluster.bucket(subjects.batches_bucket)
    assert await marks.entries() == []
