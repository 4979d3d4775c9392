"""The real engine as a child process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.forked_program import call_forked
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import finishes_of, make_add, tokens_of
from tests.worker.engine_listener import Listener
from worker.engine_child.engine_process import EngineProcess
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineFailed, EngineLoading, EngineReady


def test_a_child_computes_what_we_would(tiny_llama: Path) -> None:
    call_forked(run_child, tiny_llama, timeout_s=100)


def run_child(path: Path) -> None:
    asyncio.run(compute_in_child(path))


async def compute_in_child(path: Path) -> None:
    add = make_add(1, random_prompt(50, 1), max_tokens=20, ignore_eos=True)
    expected = Rig(path).run(add)[1]
    listener = Listener()
    config = EngineConfig(model_path=str(path), num_threads=1, num_kv_tokens=1024)
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    engine.send(add)  # waits in the socket until the model is loaded
    await listener.until_finished(1)
    assert tokens_of(listener.events)[1] == expected
    assert listener.events[0] == EngineLoading("import torch", 0.0)
    assert any(isinstance(event, EngineReady) for event in listener.events)
    assert finishes_of(listener.events)[1].reason == "length"
    assert await engine.stop(timeout_s=10.0) == 0


async def test_a_checkpoint_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    listener = Listener()
    config = EngineConfig(model_path=str(tmp_path / "nothing"))
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    assert await engine.wait() == 1
    failed = listener.events[-1]
    assert isinstance(failed, EngineFailed)
    assert "is not a folder" in failed.message
