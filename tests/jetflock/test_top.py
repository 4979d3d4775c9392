"""`jetflock top` and `jetflock models` show what runs: once, as JSON, and live."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from rich.console import Console

from jetflock.top.snapshot_tables import snapshot_tables
from shared.protocol.role_cards import GpuCard, WorkerCard, WorkerState
from shared.snapshot.cluster_reader import ClusterReader
from tests.e2e.role_stack import DEMO_MODEL, MODEL_NAME, RoleStack
from tests.forked_program import run_program
from tests.frontend.cluster.test_loads import make_snapshot
from tests.jetflock.terminal_program import TerminalProgram
from tests.nats_server import free_port

JETFLOCK = (sys.executable, "-m", "jetflock")


async def run(stack: RoleStack, *argv: str) -> str:
    env = {**os.environ, "JETFLOCK_NATS_URL": stack.nats.url}
    done = await asyncio.to_thread(run_program, "jetflock", *argv, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_program_gets_a_table_or_json(shared_stack: RoleStack) -> None:
    look: dict[str, Any] = json.loads(await run(shared_stack, "top", "--json"))
    [worker] = look["workers"]
    assert (worker["model"], worker["state"], worker["max_running"]) == (MODEL_NAME, "ready", 32)
    assert worker["tokens_per_s"] == 0
    assert {role["role"] for role in look["roles"]} == {"frontend", "detok"}
    assert {depth["job_class"] for depth in look["queues"]} == {"interactive", "batch"}
    table = await run(shared_stack, "top")
    assert "\x1b" not in table
    [row] = [line for line in table.splitlines() if line.startswith("worker-")]
    assert row.split()[1:4] == [MODEL_NAME, "ready", "0/32"]

    [model] = json.loads(await run(shared_stack, "models", "--json"))
    assert (model["model"], model["workers"]) == (MODEL_NAME, {"ready": 1})
    [would_be] = json.loads(await run(shared_stack, "models", str(DEMO_MODEL), "--json"))
    assert would_be["revision"] == model["revision"]
    assert would_be["parsers"]["tools"][0]["name"] == "json"


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_running_request_is_seen(shared_stack: RoleStack) -> None:
    reader = ClusterReader(shared_stack.cluster, max_age_s=0.0)
    body = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 2000, "stream": True}
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", f"{shared_stack.url()}/v1/completions", json=body) as response,
    ):
        async for _ in response.aiter_lines():
            look = await reader.snapshot()
            [worker] = look.workers
            if worker.num_running and look.tokens_per_s.get(worker.worker):
                break
    assert worker.worker in look.step_age_s
    assert sum(depth.num_taken for depth in look.queues) == 1


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_person_sees_it_live_until_q(shared_stack: RoleStack) -> None:
    def watch() -> None:
        env = {"JETFLOCK_NATS_URL": shared_stack.nats.url}
        with TerminalProgram([*JETFLOCK, "top", "--interval-s", "0.1"], env, columns=160) as top:
            top.wait_for("q leaves")
            top.wait_for(MODEL_NAME)
            top.wait_for("q leaves")  # again: it lives
            top.type("q")
            assert top.wait_exit() == 0

    await asyncio.to_thread(watch)


@pytest.mark.e2e
def test_nobody_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # else a service of another test is told
    url = f"nats://127.0.0.1:{free_port()}"
    argv = [*JETFLOCK, "top", "--nats-url", url, "--nats-connect-timeout-s", "0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"jetflock top: nothing listens at {url}; no jetflock serve runs")


def test_a_gpu_has_a_column_where_there_is_one() -> None:
    gpu = GpuCard("NVIDIA H100", "bfloat16", "fp8", "triton", 2, total_bytes=80 << 30)
    ready = WorkerCard("worker-1", "p", "tiny", "r", WorkerState.READY, role="decode")
    for card, is_shown in ((ready, False), (msgspec.structs.replace(ready, gpu=gpu), True)):
        shown = io.StringIO()
        console = Console(width=200, file=shown)
        console.print(snapshot_tables(make_snapshot(0.0, [card], []), "nats://x"))
        told = "2 x H100, 0.0 of 80.0 GiB free, triton, bfloat16"
        assert "ready, decode" in shown.getvalue()
        assert (told in shown.getvalue()) == ("GPU" in shown.getvalue()) == is_shown
