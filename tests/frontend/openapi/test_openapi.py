"""The OpenAPI document names what is served, and a frontend that is fuzzed by it stays whole."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from frontend.openapi.answers import answer_schemas
from frontend.openapi.bodies import body_schemas
from frontend.openapi.document import openapi_document
from frontend.routes.api_route import (
    CHAT_PATHS,
    EMBEDDING_PATHS,
    MODEL_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
)
from shared.protocol.codec import encode
from tests.frontend.conftest import Stack

MAX_STALL_S = 0.05
# Of each operation that has several, its paths.
PATHS = (
    CHAT_PATHS, EMBEDDING_PATHS, MODEL_PATHS, RERANK_PATHS, RESPONSE_PATHS, SCORE_PATHS,
)  # fmt: skip


@dataclass
class LoopProbe:
    """The most CPU time that the loop's thread spent between two looks."""

    worst_s: float = 0.0

    async def run(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            self.worst_s = max(self.worst_s, now - before)
            before = now


@contextlib.asynccontextmanager
async def probed_loop() -> AsyncIterator[LoopProbe]:
    """What is there already is kept out of collections, as the program does."""
    gc.collect()
    gc.freeze()
    probe = LoopProbe()
    task = asyncio.create_task(probe.run())
    try:
        yield probe
    finally:
        task.cancel()
        gc.unfreeze()


def test_all_schemas_are_valid_and_all_references_lead_somewhere() -> None:
    document = openapi_document("0")
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    referred = set(re.findall(r"#/components/schemas/(\w+)", repr(document)))
    assert referred <= schemas.keys()


def test_no_body_has_the_name_of_an_answer() -> None:
    assert not body_schemas().keys() & answer_schemas().keys()


@pytest.mark.integration
async def test_the_document_names_every_route(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("key",))
    async with running.client() as client:
        document = (await client.get("/openapi.json")).json()
        for path in running.frontend.side.app.paths:
            assert path in document["paths"], path
        for path in document["paths"]:
            answer = await client.request("PUT", path)
            assert answer.status_code == 405, path


@pytest.mark.integration
async def test_paths_of_one_operation_answer_alike(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        document = (await client.get("/openapi.json")).json()
        for paths in PATHS:
            (method,) = document["paths"][paths[0]]
            told = {json.dumps(_without_ids(document["paths"][path])) for path in paths}
            answers = [await client.request(method, path, json={}) for path in paths]
            assert len(told) == 1, paths
            assert len({(answer.status_code, answer.text) for answer in answers}) == 1, paths


def _without_ids(operations: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {method: told | {"operationId": ""} for method, told in operations.items()}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(240)
@pytest.mark.nightly
async def test_a_fuzzed_frontend_keeps_to_its_document(stack: Stack, tmp_path: Path) -> None:
    """Valid and invalid requests of every operation: no 5xx, nothing undocumented, no stall."""
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    kept = msgspec.structs.replace(stack.card, is_kept=True)  # the fake has no heartbeat
    await cards.put(kept.pool, encode(kept))
    running = await stack.start_frontend()
    async with running.client() as client:
        document = (await client.get("/openapi.json")).json()
    for name in body_schemas():
        fields = document["components"]["schemas"][name].get("properties", {})
        if "model" in fields:  # a random name is never served
            fields["model"] = {"enum": ["tiny"]}
    del document["paths"]["/cluster/events"]  # it never ends
    for _, *others in PATHS:  # they answer alike: once is enough
        for path in others:
            del document["paths"][path]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    schemathesis = Path(sys.executable).parent / "schemathesis"
    async with probed_loop() as probe:
        process = await asyncio.create_subprocess_exec(
            schemathesis,
            "run",
            tmp_path / "openapi.json",
            f"--url={running.url}",
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance",
            "--max-examples=4",
            "--generation-deterministic",
            "--request-timeout=20",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
    async with running.client() as client:
        assert (await client.get("/ready")).status_code == 200
    assert probe.worst_s < MAX_STALL_S
