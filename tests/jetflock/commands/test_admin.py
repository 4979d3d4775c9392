"""`jetflock admin` against a running worker."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import pytest

from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.request import FEATURE_LEVEL
from tests.forked_program import run_program
from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, make_card, make_request, open_stage
from tests.worker.running_worker import running_worker

pytestmark = pytest.mark.integration


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        card = make_card()
        models = stage.cluster.bucket(stage.cluster.subjects.models_bucket)
        await models.put(card.pool, encode(card))
        yield stage


async def run(stage: Stage, *argv: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        run_program, "jetflock", "admin", *argv, "--nats-url", stage.config.nats_url
    )


async def test_workers_are_paused_and_continued(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        paused = await run(stage, "pause")
        assert (paused.stdout, paused.returncode) == (f"{worker.id}\tok\n", 0), paused.stderr
        listed = (await run(stage, "workers")).stdout.split("\t")
        assert listed[:6] == [worker.id, "m", "rev", "paused", "0", "0"]
        continued = await run(stage, "continue", "--worker", worker.id)
        assert continued.stdout == f"{worker.id}\tok\n"
        [facts] = json.loads((await run(stage, "workers", "--json")).stdout)
        assert facts["state"] == "ready"


async def test_stats_show_queue_and_workers(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        await stage.submit(make_request())
        await worker.engine.next_run()
        await run(stage, "pause", "--mode", "freeze", "--model", "m")
        await stage.submit(make_request(), "batch")
        shown = json.loads((await run(stage, "stats")).stdout)
        running, waiting = shown["queues"]
        assert waiting.pop("oldest_wait_s") > 0
        assert waiting == {"model": "m", "job_class": "batch", "num_waiting": 1, "num_taken": 0}
        assert (running["num_taken"], running["oldest_wait_s"]) == (1, 0)
        [stats] = shown["workers"]
        assert (stats["worker"], stats["stats"]["state"]) == (worker.id, "frozen")
        assert stats["stats"]["num_held"] == 1


async def test_a_running_and_a_queued_request_are_aborted(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        running, queued, other = make_request(), make_request(), make_request()
        await stage.submit(running)
        engine_run = await worker.engine.next_run()
        stepping = asyncio.create_task(worker.engine.keep_stepping())
        await run(stage, "pause")
        await stage.submit(queued)
        await stage.submit(other)
        assert (await run(stage, "abort", running.rid)).stdout == "1\n"
        await worker.until_idle()
        assert worker.engine.aborted == [engine_run.run_id]
        assert (await run(stage, "abort", queued.rid)).stdout == "1\n"
        [end] = await stage.records(queued.rid)
        assert isinstance(end.record, End)
        assert (end.record.reason, end.record.reply) == (FinishReason.CANCEL, queued.reply)
        assert await stage.records(other.rid) == []
        assert (await run(stage, "abort", "--all-of", "m")).stdout == "1\n"  # `other` alone
        await run(stage, "continue")
        await stage.until_queue_is_empty()
        await worker.until_idle()
        stepping.cancel()
        assert [stored.record for stored in await stage.records(queued.rid)] == [end.record]


async def test_a_drained_worker_is_gone(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        assert (await run(stage, "drain", worker.id)).returncode == 0
        async with asyncio.timeout(10):
            await asyncio.wait([worker.task])
        assert (await run(stage, "workers")).stdout == ""


async def test_what_cannot_be_done_is_said(stage: Stage) -> None:
    async def complaint(*argv: str, status: int = 2) -> str:
        done = await run(stage, *argv)
        assert done.returncode == status
        return done.stderr

    rid = make_request().rid
    assert "no worker lives" in await complaint("pause", status=1)
    assert "No model 'x' is served" in await complaint("pause", "--model", "x")
    assert "No worker w1 lives" in await complaint("drain", "w1")
    assert f"No request {rid} is queued or running" in await complaint("abort", rid)
    assert "is no request id" in await complaint("abort", "xyz")
    assert "--all-of" in await complaint("abort")


async def test_the_feature_level_is_shown_and_held(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        held = await run(stage, "level", "--hold")
        assert held.returncode == 0, held.stderr
        first, row = held.stdout.splitlines()
        assert first == f"level {FEATURE_LEVEL}, held"
        assert row.split("\t")[:2] == [worker.id, "worker"]
        free = json.loads((await run(stage, "level", "--no-hold", "--json")).stdout)
        assert (free["level"], free["known_here"]) == (FEATURE_LEVEL, FEATURE_LEVEL)
        assert free["is_held"] is False
        refused = await run(stage, "level", "--to", "7")
        assert (refused.returncode, f"knows {FEATURE_LEVEL}" in refused.stderr) == (2, True)
