"""Keeps an engine process running, and knows how it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from shared.errors import ConfigError
from shared.protocol.role_cards import GpuCard
from shared.telemetry.log import get_logger
from shared.telemetry.startup_phases import StartupPhases
from worker.engine_link.engine_messages import (
    AbortRequest,
    AdapterLoaded,
    AddRequest,
    CacheReleased,
    DropAdapter,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineLoad,
    EngineLoading,
    EngineReady,
    FlushCache,
    LoadAdapter,
    RanksAwaited,
    ReleaseCache,
    SetPaused,
    SetProfiling,
    StepOutput,
)

_RESTART_S = 1.0

log = get_logger(__name__)


class Engine(Protocol):
    """What the host needs of an engine process."""

    async def start(self) -> None: ...

    def send(self, command: EngineCommand) -> None: ...

    def kill(self) -> None: ...


EngineFactory = Callable[[Path, Callable[[EngineEvent], None], Callable[[int], None]], Engine]


class EngineListener(Protocol):
    """Who hears of the engine."""

    def on_ready(self) -> None: ...

    def on_step(self, step: StepOutput) -> None: ...

    def on_adapter(self, loaded: AdapterLoaded) -> None: ...

    async def on_engine_died(self) -> None:
        """All runs are gone. The next engine starts when this returns."""
        ...


@dataclass(slots=True)
class _Replacement:
    """An engine that is to take the place of another."""

    path_before: Path
    done: asyncio.Future[None]
    is_started: bool = False


class EngineHost:
    """One engine at a time; another one is started when it dies.

    `ready` and `load` are None while no engine can take requests.
    """

    def __init__(self, factory: EngineFactory, model_path: Path, startup: StartupPhases) -> None:
        self._factory = factory
        self._startup = startup
        self._model_path = model_path
        self._replacement: _Replacement | None = None
        self._listener: EngineListener | None = None
        self._engine: Engine | None = None
        self._exited = asyncio.Event()
        self._wanted = asyncio.Event()  # whether there shall be an engine
        self._wanted.set()
        self._cache_released = asyncio.Event()  # or there is no engine that has one
        self._failure: ConfigError | None = None
        self._is_paused = False  # as the engine was told
        self._is_stalled = False
        self._is_frozen = False
        self._is_stopping = False
        self._last_step_at = time.monotonic()
        self._asked_at: float | None = None  # a command that has had no answer yet
        self.ready: EngineReady | None = None
        self.load: EngineLoad | None = None
        self.loading = EngineLoading("starting", 0.0)
        self.ranks_awaited: RanksAwaited | None = None  # of other hosts, until it is ready
        self.step = 0
        self.sleep_level = 0  # 1: its cache is released, 2: there is no engine; outlives the engine

    async def run(self, listener: EngineListener) -> None:
        """Run engines until cancelled. Raises ConfigError when the engine says it cannot start."""
        self._listener = listener
        try:
            while True:
                await self._wanted.wait()
                self._exited.clear()
                if self._replacement is not None:
                    self._replacement.is_started = True
                self._startup.enter("start engine")
                self._engine = self._factory(self._model_path, self._on_event, self._on_exit)
                await self._engine.start()
                await self._exited.wait()
                if self._replacement is not None:
                    self._give_up_started(self._replacement)
                    continue
                if not self._wanted.is_set():
                    continue
                if self._failure is not None:
                    raise self._failure
                await listener.on_engine_died()
                await asyncio.sleep(_RESTART_S)
        finally:
            self._is_stopping = True
            if self._engine is not None:
                self._engine.kill()

    async def replace(self, model_path: Path) -> None:
        """Another engine, with the checkpoint there, in place of the one that runs.

        No run may be there. Raises ConfigError when the new one cannot start: then one like the
        old one is on its way.
        """
        assert self._replacement is None, "one at a time"
        assert self._engine is not None, "run() comes first"
        self.wake_up()
        replacement = _Replacement(self._model_path, asyncio.get_running_loop().create_future())
        self._replacement, self._model_path = replacement, model_path
        self._engine.kill()
        await replacement.done

    async def fall_asleep(self, level: int) -> None:
        """Give memory back: that of the cache (1), or all that an engine has (2). No run may be
        there, and none may come before `wake_up`.
        """
        self.sleep_level = level
        if level == 1:
            self._cache_released.clear()
            self._ask(ReleaseCache())
            await self._cache_released.wait()
        elif self._engine is not None:
            self._wanted.clear()
            self._engine.kill()
            await self._exited.wait()
            self.loading = EngineLoading("asleep", 0.0)

    def wake_up(self) -> None:
        """From level 2 the engine loads, as at a start."""
        self.sleep_level = 0
        self._wanted.set()

    def _give_up_started(self, replacement: _Replacement) -> None:
        """An engine has exited: the old one, as it should, or the new one, which cannot start."""
        if not replacement.is_started:
            return
        error = self._failure or ConfigError("the engine died while it loaded the weights")
        self._failure = self._replacement = None
        self._model_path = replacement.path_before
        replacement.done.set_exception(error)

    def add(self, run: AddRequest) -> None:
        """Start a run; its output comes with `on_step`."""
        self._ask(run)

    def load_adapter(self, adapter: str, path: Path) -> None:
        """What came of it is told by `on_adapter`; runs that are added behind it may name it."""
        self._ask(LoadAdapter(adapter, str(path)))

    def drop_adapter(self, adapter: str) -> None:
        """Runs with it go on; none may come any more."""
        self._ask(DropAdapter(adapter))

    def abort(self, run_id: int) -> None:
        self._ask(AbortRequest(run_id))

    def set_stalled(self, stalled: bool) -> None:
        """The log cannot take more for the moment, or can again."""
        self._is_stalled = stalled
        self._report_paused()

    def set_frozen(self, frozen: bool) -> None:
        """An operator wants no steps, or wants them again. Outlives the engine."""
        self._is_frozen = frozen
        self._report_paused()

    def _report_paused(self) -> None:
        """Reports a pause for one reason or both; without effect when the engine knows."""
        paused = self._is_stalled or self._is_frozen
        if self.ready is not None and paused != self._is_paused:
            self._is_paused = paused
            self._last_step_at = time.monotonic()  # none was owed in the pause
            self._asked_at = None
            self._send(SetPaused(paused))

    def flush_cache(self) -> None:
        """Forget all cached prefixes that no run holds."""
        self._ask(FlushCache())

    def set_profiling(self, max_s: float) -> None:
        """Begin a profile, which ends by itself after so long; 0: end it now."""
        self._ask(SetProfiling(max_s))

    @property
    def gpu(self) -> GpuCard | None:
        """The GPU, with what is free of it now."""
        if self.ready is None or self.ready.gpu is None or self.load is None:
            return self.ready.gpu if self.ready is not None else None
        return msgspec.structs.replace(self.ready.gpu, free_bytes=self.load.gpu_free_bytes)

    def mark_busy(self) -> None:
        """Work begins: from now on steps are expected."""
        self._last_step_at = time.monotonic()

    def owed_s(self, *, has_runs: bool) -> float:
        """Seconds for which it owes a step to its runs, or the answer to a command: after each one
        the engine tells its load. A paused engine owes nothing.

        So an engine whose only run was aborted while it hung does not pass for an idle one.
        """
        since = self._asked_at
        if has_runs and (since is None or since > self._last_step_at):
            since = self._last_step_at
        return 0.0 if since is None or self._is_paused else time.monotonic() - since

    def excuse(self, seconds: float) -> None:
        """Excuses a time in which nothing was owed."""
        self._last_step_at += seconds
        if self._asked_at is not None:
            self._asked_at += seconds

    def _ask(self, command: EngineCommand) -> None:
        if self.ready is not None and self._asked_at is None:
            self._asked_at = time.monotonic()
        self._send(command)

    def _send(self, command: EngineCommand) -> None:
        if self._engine is not None:
            self._engine.send(command)

    def _on_event(self, event: EngineEvent) -> None:
        assert self._listener is not None
        match event:
            case StepOutput():
                self.step = event.step
                self.load = event.load
                self._last_step_at = time.monotonic()
                self._asked_at = None
                self._listener.on_step(event)
            case AdapterLoaded():
                self._listener.on_adapter(event)
            case CacheReleased():
                self._cache_released.set()
            case EngineLoading():
                self.loading = event
                self._startup.enter(event.phase)
            case RanksAwaited():
                self.ranks_awaited = event
            case EngineReady():
                self.ranks_awaited = None
                self.ready = event
                self._startup.end()
                log.info(
                    "engine_ready",
                    max_running=event.max_running,
                    num_kv_tokens=event.num_kv_tokens if event.keeps_kv else 0,
                    device=event.gpu.name if event.gpu else "cpu",
                    dtype=event.dtype,
                    kernel_set=event.kernel_set,
                    remark=event.remark,
                )
                self._report_paused()
                if self.sleep_level:
                    self._ask(ReleaseCache())
                if self._replacement is not None and self._replacement.is_started:
                    self._replacement.done.set_result(None)
                    self._replacement = None
                self._listener.on_ready()
            case EngineFailed() if self.ready is None:
                self._failure = ConfigError(event.message)
            case EngineFailed():  # while it ran: the next one may fare better
                log.error("engine_failed", error=event.message)

    def _on_exit(self, returncode: int) -> None:
        is_told = self._is_stopping or self._replacement is not None or not self._wanted.is_set()
        if self._failure is None and not is_told:
            log.error("engine_exited", returncode=returncode)
        self.ready = None
        self.ranks_awaited = None
        self.load = None
        self._is_paused = False
        self._asked_at = None
        self._cache_released.set()
        self._exited.set()
