"""LoRA adapters come and go while requests run: by the admin plane's HTTP, and by its command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.lora_files import LoraFiles
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.role_cards import WorkerState
from tests.eventually import eventually
from tests.jetflock.admin_plane.test_admin_http import post, stage, worker
from tests.jetflock.commands.test_admin import run
from tests.lora_adapters import make_lora_files
from tests.worker.io_stage import Stage, ids, make_request
from tests.worker.running_worker import RunningWorker, running_worker

__all__ = ["stage", "worker"]  # fixtures

pytestmark = pytest.mark.integration

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def files(tmp_path: Path) -> LoraFiles:
    return make_lora_files(tmp_path / "one", 1.0)


def order(tmp_path: Path, name: str = "one") -> dict[str, Any]:
    return {"lora_name": name, "lora_path": str(tmp_path / "one")}


async def test_what_runs_finishes_and_what_waits_ends(
    stage: Stage, files: LoraFiles, tmp_path: Path
) -> None:
    async with running_worker(stage, max_running=1) as worker:
        answer = await post(stage, LOAD, order(tmp_path))
        assert answer == (
            200,
            {
                "success": True,
                "name": "one",
                "model": "m",
                "revision": files.revision,
                "workers": [{"worker": worker.id, "ok": True}],
            },
        )
        assert await post(stage, LOAD, order(tmp_path)) == answer  # once more changes nothing
        running, waiting = (make_request(adapter=files.revision) for _ in range(2))
        await stage.submit(running)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"))
        await stage.until_logged(running.rid, 1)
        await stage.submit(waiting)
        status, answer = await post(stage, UNLOAD, {"lora_name": "one"})
        assert (status, answer["workers"]) == (200, [{"worker": worker.id, "ok": True}])
        assert worker.engine.adapters == {}
        worker.engine.emit(run.run_id, ids("b"), Finish(FinishReason.STOP))
        assert (await stage.until_finished(running.rid)).tokens == ids("ab")
        finish = (await stage.until_finished(waiting.rid)).finish
        assert finish is not None
        assert finish.reason is FinishReason.ADAPTER_UNLOADED
        assert list(worker.engine.runs) == [run.run_id]


async def test_what_a_worker_refuses_is_not_served(
    stage: Stage, worker: RunningWorker, files: LoraFiles, tmp_path: Path
) -> None:
    async def complaint(path: str, body: dict[str, Any]) -> str:
        status, answer = await post(stage, path, body)
        assert status in (400, 404)
        return str(answer["error"]["message"])

    worker.engine.adapter_error = "this worker has max_loras=0"
    assert f"{worker.id}: this worker has max_loras=0" in await complaint(LOAD, order(tmp_path))
    assert worker.engine.adapters == {}
    assert "There is no LoRA adapter 'one'" in await complaint(UNLOAD, {"lora_name": "one"})
    assert "No model 'x' is served" in await complaint(LOAD, order(tmp_path) | {"model": "x"})
    assert "no LoRA adapter at '/nowhere'" in await complaint(
        LOAD, {"lora_name": "one", "lora_path": "/nowhere"}
    )
    assert "lora_path" in await complaint(LOAD, {"lora_name": "one"})
    assert "load_inplace" in await complaint(LOAD, order(tmp_path) | {"load_inplace": True})
    assert worker.worker._state is WorkerState.READY


async def test_the_commands(stage: Stage, files: LoraFiles, tmp_path: Path) -> None:
    """Also without a worker: who starts later finds the adapter in the catalog."""
    loaded = await run(stage, "load-lora", "one", str(tmp_path / "one"))
    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert loaded.stdout == f"one: revision {files.revision}, on m\n"
    async with running_worker(stage) as worker:
        await eventually(lambda: files.revision in worker.engine.adapters)
        both = await asyncio.gather(
            run(stage, "load-lora", "m", str(tmp_path / "one")), run(stage, "unload-lora", "one")
        )
        assert (both[0].returncode, both[1].returncode) == (2, 0)
        assert "a LoRA adapter cannot have the name of 'm': it is served" in both[0].stderr
        assert both[1].stdout == f"{worker.id}\tok\n"
        assert worker.engine.adapters == {}
