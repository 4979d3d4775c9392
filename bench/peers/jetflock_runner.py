"""Runs our engine process as the worker's I/O process does: commands in, step outputs out."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json

import uvloop

from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine_child.engine_process import EngineProcess
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineEvent,
    EngineFailed,
    EngineReady,
    RunOptions,
    StepOutput,
)

STOP_TIMEOUT_S = 10.0


class JetflockRunner:
    """The engine process, and an event loop that turns while a run lasts."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = importlib.metadata.version("jetflock")
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._engine = EngineProcess(_engine_config(settings), self._on_event, self._on_exit)
        self._traces: dict[int, RequestTrace] = {}  # of the run, by run_id
        self._num_unfinished = 0
        self._num_runs = 0
        self._stopwatch = Stopwatch()
        self._is_ready = asyncio.Event()
        self._is_done = asyncio.Event()
        self._loop.run(self._start())

    @property
    def pid(self) -> int:
        return self._engine.pid

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        return self._loop.run(self._run(prompts, output_len))

    def close(self) -> None:
        self._loop.run(self._engine.stop(STOP_TIMEOUT_S))

    async def _start(self) -> None:
        await self._engine.start()
        await self._is_ready.wait()

    async def _run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        sampling = SamplingParams(max_tokens=output_len, seed=0, temperature=0.0, ignore_eos=True)
        commands = []
        for prompt in prompts:
            self._num_runs += 1
            commands.append(
                AddRequest(
                    run_id=self._num_runs,
                    prompt_ids=pack_token_ids(prompt),
                    options=RunOptions(sampling=sampling),
                )
            )
        self._traces = {command.run_id: RequestTrace() for command in commands}
        self._num_unfinished = len(commands)
        self._is_done.clear()
        self._stopwatch = Stopwatch()
        for command in commands:
            self._engine.send(command)
        await self._is_done.wait()
        return list(self._traces.values())

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case EngineReady():
                self._is_ready.set()
            case EngineFailed(message=message):
                raise SystemExit(message)
            case StepOutput():
                self._on_step(event)

    def _on_step(self, step: StepOutput) -> None:
        now_s = self._stopwatch()
        for output in step.outputs:
            self._traces[output.run_id].add(output.token_ids, now_s)
            self._num_unfinished -= output.finish is not None
        if self._num_unfinished == 0:
            self._is_done.set()

    def _on_exit(self, returncode: int) -> None:
        if returncode != 0:
            raise SystemExit(f"the engine exited with {returncode}")


def _engine_config(settings: RunnerSettings) -> EngineConfig:
    values: dict[str, object] = {
        "model_path": settings.model,
        "num_threads": settings.num_threads,
        "dtype": settings.dtype,
        "max_running": settings.max_running,
        "max_context_len": settings.max_len,
        "kv_memory_bytes": settings.kv_gib << 30,
    }
    names = {field.name for field in dataclasses.fields(EngineConfig)}
    for name, value in settings.extra.items():
        if name not in names:
            raise SystemExit(f"the engine has no setting {name!r}")
        values[name] = _value_of(value)
    return EngineConfig.from_json(json.dumps(values))


def _value_of(text: str) -> object:
    """A number or a boolean as JSON writes it; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    serve(JetflockRunner)
