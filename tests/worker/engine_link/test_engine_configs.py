"""What a worker tells its engine, of all that it is told."""

from __future__ import annotations

from pathlib import Path

from worker.config import WorkerConfig
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.scripted_config import ScriptedConfig


def test_the_scripted_engine_is_a_program_of_its_own() -> None:
    config = WorkerConfig(scripted=True, scripted_token_s=0.5, max_running=3)
    told = config.engine_config(Path("model"))
    assert told == ScriptedConfig(model_path="model", scripted_token_s=0.5, max_running=3)
    assert told.program == "worker.engine.scripted"
    assert ScriptedConfig.from_json(told.to_json()) == told


def test_an_engine_with_a_model_hears_nothing_of_it() -> None:
    told = WorkerConfig(scripted_token_s=0.5).engine_config(Path("model"))
    assert type(told) is EngineConfig
    assert told.program == "worker.engine"
    assert "scripted" not in told.to_json()
