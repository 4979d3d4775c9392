"""The whole stack over TLS, each role under its own NATS user: all it does, and nothing refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from jetflock import Client
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.config import ClusterConfig
from shared.protocol.codec import decode
from shared.protocol.dead import DeadRequest
from tests.e2e.role_stack import DEMO_MODEL, MODEL_NAME, REAL_ENGINE, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.frontend.batch_calls import create, jsonl, line, rows, until
from tests.nats_server import NatsServer
from tests.nats_users import NatsUsers
from tests.tls_files import make_tls_files

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

POISON_TOKEN = 77
LONG_PROMPT = [300 + i % 500 for i in range(70_000)]  # above 256 KiB: by the object store


@pytest.fixture
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RoleStack]:
    folder = tmp_path / "nats"
    is_apart = getattr(request, "param", "users") == "accounts"
    users = NatsUsers(folder, ["client"], accounts=is_apart)
    make_tls_files(folder)
    server = users.server(
        f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key" }}'
    )
    admin = ClusterConfig(
        nats_user="admin",
        nats_password_file=folder / "admin.password",
        nats_tls_ca=folder / "ca.pem",
    )

    def flags(role: str) -> list[str]:
        login = [
            "--nats-user", role, "--nats-password-file", str(folder / f"{role}.password"),
            "--nats-tls-ca", str(folder / "ca.pem"),
        ]  # fmt: skip
        service = [
            "--nats-callers", users.callers, "--nats-service-user", "service",
            "--nats-service-password-file", str(folder / "service.password"),
            "--nats-eraser-user", "eraser",
            "--nats-eraser-password-file", str(folder / "eraser.password"),
        ]  # fmt: skip
        return login + (service if role == "frontend" else [])

    async with RoleStack(tmp_path, nats=server, config=admin, role_flags=flags) as running:
        yield running


async def post(stack: RoleStack, path: str, body: dict[str, Any], **headers: str) -> Any:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{stack.url()}{path}", json=body, headers=headers)


def assert_nothing_refused(stack: RoleStack) -> None:
    for role in stack.roles:
        for told in role.log.splitlines():
            assert "permissions violation" not in told.lower(), f"{role.name}: {told}"


# The tests below have users of one account.
@pytest.mark.parametrize(
    "stack", ["accounts", pytest.param("users", marks=pytest.mark.nightly)], indirect=True
)
async def test_streams_keys_resumes_offers_clients_and_long_prompts(
    stack: RoleStack, tmp_path: Path
) -> None:
    model = tmp_path / "long-model"
    shutil.copytree(DEMO_MODEL, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 200_000}))
    await ModelCatalog(stack.cluster).register(ModelFiles.read(model), "long")
    other = stack.start_frontend()
    first, _ = stack.start_worker(*SCRIPTED), stack.start_worker(*SCRIPTED)
    stack._start(
        "worker", str(model), "--model-name", "long", *SCRIPTED, "--max-context-len", "200000"
    )
    await stack.wait_ready(3)

    # A stream that goes on at another frontend.
    stream = await run_stream(stack.url(), seed=1, max_tokens=30)
    again = Stream(last_event_id=f"{stream.rid}.0.0.00000000")
    await again.resume(stack.url(other))
    assert again.text == stream.text

    # The same key twice: one request.
    body = completion_body(max_tokens=20, stream=False)
    keyed = [await post(stack, "/v1/completions", body, **{"Idempotency-Key": "k"}) for _ in "12"]
    assert keyed[0].json() == keyed[1].json()

    # Prompts with a common beginning are offered.
    prompt = "Once upon a time there was a fox. " * 20
    for seed in range(8):
        await run_stream(stack.url(), prompt=prompt, seed=seed, max_tokens=3)

    # A prompt by the object store.
    long = {"model": "long", "prompt": LONG_PROMPT, "max_tokens": 5, "ignore_eos": True}
    answer = await post(stack, "/v1/completions", long)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == len(LONG_PROMPT)

    # Loads: cards of workers, and the queue's consumers.
    async with httpx.AsyncClient() as http:
        loads = (await http.get(f"{stack.url()}/v1/loads")).json()
        cluster = (await http.get(f"{stack.url()}/cluster")).json()
    assert loads["dp_rank_count"] == 3
    assert len(cluster["workers"]) == 3
    assert cluster["events"], "the workers have told that they are ready"
    assert list(cluster["detokenizers"])

    # A client over NATS, with no rights but to ask.
    assert isinstance(stack.nats, NatsServer)
    folder = stack.nats.folder
    async with Client(
        stack.nats.url,
        user="client",
        password=(folder / "client.password").read_text().strip(),
        tls=stack.cluster.nc.options["tls"],
    ) as client:
        result = await client.generate_async(
            "Hello", model=MODEL_NAME, max_tokens=5, ignore_eos=True
        )
        assert result.text
        response = await client.ask_async(
            "responses", {"model": MODEL_NAME, "input": "Hello", "max_output_tokens": 5}
        )
        assert await client.ask_async("responses.get", {"id": response["id"]}) == response
        (tmp_path / "in.jsonl").write_bytes(jsonl(line(0, model=MODEL_NAME)))
        file = await client.upload_async(tmp_path / "in.jsonl")
        await client.download_async(file["id"], tmp_path / "out.jsonl")
        assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "in.jsonl").read_bytes()

    # A worker dies: its requests are handed back, and read from the log by the other one.
    expected = [await run_stream(stack.url(), seed=seed, max_tokens=75) for seed in range(4)]
    streams = [Stream() for _ in expected]
    running = [
        asyncio.create_task(stream.post(stack.url(), completion_body(seed=seed, max_tokens=75)))
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(10)
    first.kill()
    await asyncio.wait_for(asyncio.gather(*running), 60)
    assert [stream.text for stream in streams] == [stream.text for stream in expected]
    assert_nothing_refused(stack)


async def test_a_batch(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    async with AsyncOpenAI(base_url=f"{stack.url()}/v1", api_key="none", timeout=30) as client:
        asked: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": 3}
        lines = [line(0, **asked), line(1, **asked), line(2, **asked, top_p=7)]
        batch = await until(client, await create(client, jsonl(*lines)), "completed")
        assert len(await rows(client, batch.output_file_id)) == 2
        assert len(await rows(client, batch.error_file_id)) == 1
        await client.files.delete(batch.input_file_id)
        assert len([file async for file in client.files.list()]) == 2
    assert_nothing_refused(stack)


async def test_embeddings(stack: RoleStack) -> None:
    stack.start_worker(*REAL_ENGINE)
    await stack.wait_ready(1)
    answer = await post(stack, "/v1/embeddings", {"model": MODEL_NAME, "input": ["a fox", "a cat"]})
    assert len(answer.json()["data"]) == 2
    assert_nothing_refused(stack)


async def test_poison_is_kept(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED, "--scripted-poison-token", str(POISON_TOKEN))
    await stack.wait_ready(1)
    body = {"model": MODEL_NAME, "prompt": [300, POISON_TOKEN, 301], "max_tokens": 5}
    answer = await post(stack, "/v1/completions", body, **{"Idempotency-Key": "poison"})
    assert answer.json()["error"]["code"] == "poison"
    subjects = stack.cluster.subjects
    dead = [m async for m in stack.cluster.js.direct_scan(subjects.dead_stream, subjects.dead("*"))]
    assert len(dead) == 1

    rid = decode(DeadRequest, dead[0].data).rid
    async with httpx.AsyncClient(timeout=60) as client:
        erased = await client.delete(f"{stack.url()}/v1/streams/{rid}")
        while erased.status_code == 503:  # as it says: ask again
            erased = await client.delete(f"{stack.url()}/v1/streams/{rid}")
    assert erased.status_code == 200, erased.text
    assert await stack.cluster.js.get_last(subjects.dead_stream, subjects.dead("*")) is None
    assert_nothing_refused(stack)
