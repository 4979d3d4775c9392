from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from deploy.local.serve_config import demo_model
from tests.eventually import wait_until
from tests.forked_program import call_forked
from tests.worker.engine_fakes import EngineThread, make_add, tokens_of
from tests.worker.engine_listener import Listener
from worker.engine.scripted.scripted_engine import scripted_loop
from worker.engine_child.engine_process import EngineHandle, EngineProcess
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AbortRequest, EngineFailed, EngineReady
from worker.engine_link.scripted_config import ScriptedConfig

pytestmark = pytest.mark.e2e

SCRIPTED = ScriptedConfig(scripted_token_s=0.001)


def run_on(loop_factory: Any, story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story)


async def serve_two_runs(engine: EngineHandle, listener: Listener) -> None:
    engine.send(make_add(1, [1, 2], max_tokens=5))
    engine.send(make_add(2, [3], max_tokens=3))
    engine.send(AbortRequest(99))
    await listener.until_finished(1, 2)
    assert {run_id: len(ids) for run_id, ids in tokens_of(listener.events).items()} == {1: 5, 2: 3}


async def process_story() -> None:
    listener = Listener()
    engine = EngineProcess(SCRIPTED, listener.on_event, listener.on_exit)
    await engine.start()
    await listener.until_event(EngineReady)
    await serve_two_runs(engine, listener)
    assert await engine.stop(timeout_s=30.0) == 0
    assert listener.returncodes == [0]


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_child_serves_and_ends_with_its_socket(loop_factory: Any) -> None:
    run_on(loop_factory, process_story())


async def test_an_engine_in_a_thread_serves_alike() -> None:
    listener = Listener()
    engine = EngineThread(
        lambda channel: scripted_loop(SCRIPTED, channel).run(),
        listener.on_event,
        listener.on_exit,
    )
    await engine.start()
    await serve_two_runs(engine, listener)
    assert await engine.stop(timeout_s=30.0) == 0


async def killed_story() -> None:
    listener = Listener()
    engine = EngineProcess(SCRIPTED, listener.on_event, listener.on_exit)
    await engine.start()
    engine.send(make_add(1, [1], max_tokens=10**9))
    await listener.until_event(EngineReady)
    os.kill(engine.pid, signal.SIGKILL)
    await listener.until_exit()
    assert listener.returncodes == [-signal.SIGKILL]
    engine.send(make_add(2, [1]))  # into the void, without an error
    assert await engine.stop(timeout_s=1.0) == -signal.SIGKILL


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_death_of_the_child_is_told_once(loop_factory: Any) -> None:
    run_on(loop_factory, killed_story())


async def test_a_child_that_does_not_end_is_killed() -> None:
    listener = Listener()
    engine = EngineProcess(SCRIPTED, listener.on_event, listener.on_exit)
    await engine.start()
    await listener.until_event(EngineReady)
    os.kill(engine.pid, signal.SIGSTOP)
    assert await engine.stop(timeout_s=0.1) == -signal.SIGKILL


async def test_signals_to_the_group_do_not_end_the_child() -> None:
    listener = Listener()
    engine = EngineProcess(SCRIPTED, listener.on_event, listener.on_exit)
    await engine.start()
    await listener.until_event(EngineReady)
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    await serve_two_runs(engine, listener)
    assert await engine.stop(timeout_s=30.0) == 0


async def test_an_impossible_configuration_is_told_in_a_sentence() -> None:
    listener = Listener()
    config = ScriptedConfig(max_running=0)
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    assert await engine.wait() == 1
    assert listener.events == [EngineFailed("max_running must be at least 1, not 0")]


PARENT = """
import asyncio, sys
from worker.engine_link.scripted_config import ScriptedConfig
from worker.engine_child.engine_process import EngineProcess

async def main():
    engine = EngineProcess(ScriptedConfig(), lambda event: None, lambda code: None)
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_engine_outlives_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))


def test_the_io_side_does_not_import_torch() -> None:
    code = (
        "import sys, worker.engine.__main__, worker.engine.scripted.__main__; "
        "import worker.engine_child.engine_process, worker.engine_link.engine_channel; "
        "import worker.engine_link.engine_config, worker.engine_link.engine_messages; "
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def logged_story() -> None:
    listener = Listener()
    config = EngineConfig(model_path=demo_model(), device="cpu", log_format="json")
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    await listener.until_event(EngineReady)
    assert await engine.stop(timeout_s=30.0) == 0


def print_into(out: Path, err: Path) -> None:
    """Of a process whose engine is forked, too."""
    for file, fd in ((out, 1), (err, 2)):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), fd)
    run_on(asyncio.new_event_loop, logged_story())


def test_what_an_engine_logs_has_the_form_of_the_worker(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    call_forked(print_into, out, err, timeout_s=100)
    assert out.read_text() == ""
    events = [json.loads(line) for line in err.read_text().splitlines()]
    assert "matrix_products" in [event["event"] for event in events]
    assert all(event["role"] == "engine" for event in events)
