"""The loop of every engine: commands in, steps, and what they have made out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from shared.errors import ConfigError
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_messages import (
    AbortRequest,
    AdapterLoaded,
    AddRequest,
    CacheReleased,
    DropAdapter,
    EngineCommand,
    EngineReady,
    FlushCache,
    LoadAdapter,
    ReleaseCache,
    SetPaused,
    SetProfiling,
    StepOutput,
)

IDLE_WAIT_S = 5.0


class LoopedEngine(Protocol):
    """What the loop drives. It has no channel: whatever it has to say, the loop takes and sends."""

    @property
    def is_due(self) -> bool:
        """Whether there is a step to take, or to collect, now."""
        ...

    @property
    def wait_s(self) -> float:
        """While no step is due: the seconds after which one may be, or it has news."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether something has changed that neither a step nor a report has told."""
        ...

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do."""
        ...

    def admit(self) -> None:
        """Takes in what has become ready to run, without a command."""
        ...

    def step(self) -> StepOutput | None:
        """None when its results are not there yet."""
        ...

    def report(self) -> StepOutput:
        """How full it is, and what has ended without a step."""
        ...

    def check_integrity(self) -> None:
        """Asked when it is idle. Raises RuntimeError when its books do not agree."""
        ...

    def add(self, command: AddRequest) -> None: ...

    def abort(self, run_id: int) -> None:
        """No output follows. Unknown ids are ignored."""
        ...

    def set_paused(self, paused: bool) -> None: ...

    def flush_cache(self) -> None: ...

    def release_cache(self) -> None:
        """Gives its memory back, when nothing is left to do: only asked of who said it can."""
        ...

    def load_adapter(self, adapter: str, path: Path) -> None:
        """Raises ConfigError."""
        ...

    def drop_adapter(self, adapter: str) -> None:
        """Unknown ids are ignored."""
        ...


class Profiler(Protocol):
    """Profiles what the loop's thread computes."""

    def begin(self, max_s: float) -> None:
        """Begins, for at most so long. One that runs goes on."""
        ...

    def end(self) -> None:
        """Writes it; without effect where none runs."""
        ...

    def maybe_end(self) -> None:
        """Ends one that has run for its time."""
        ...


class CommandLoop:
    """One thread, which hears commands between steps."""

    def __init__(
        self,
        channel: EngineChannel,
        engine: LoopedEngine,
        ready: EngineReady,
        profiler: Profiler | None = None,
    ) -> None:
        self._profiler = profiler
        self._channel = channel
        self._engine = engine
        self._ready = ready
        self._owes_report = False  # of how full it is, after a command

    def run(self, *, until_idle: bool = False) -> None:
        """Until the channel is closed; with `until_idle` until nothing is left to do."""
        self._channel.send(self._ready)
        while self.turn(self._wait_s(until_idle)) or not (until_idle and self._engine.is_idle):
            pass

    def turn(self, wait_s: float = 0.0) -> bool:
        """Takes the commands, for the first of which it waits, then a step if one is due.

        False when there was neither a step nor a report.
        """
        for command in self._channel.poll(wait_s):
            self._handle(command)
        self._engine.admit()
        if self._profiler is not None:
            self._profiler.maybe_end()
        if self._engine.is_due:
            self._step()
        elif self._owes_report or self._engine.has_news:
            self._send(self._engine.report())
        else:
            return False
        return True

    def _wait_s(self, until_idle: bool) -> float:
        engine = self._engine
        if engine.is_due or self._owes_report or engine.has_news:
            return 0.0
        return 0.0 if until_idle and engine.is_idle else min(IDLE_WAIT_S, engine.wait_s)

    def _step(self) -> None:
        output = self._engine.step()
        if output is None:
            return
        self._send(output)
        if self._engine.is_idle:
            self._engine.check_integrity()

    def _send(self, output: StepOutput) -> None:
        self._owes_report = False
        self._channel.send(output)

    def _handle(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                self._engine.add(command)
            case SetPaused(paused=paused):
                self._engine.set_paused(paused)
            case AbortRequest(run_id=run_id):
                self._engine.abort(run_id)
                self._owes_report = True
            case FlushCache():
                self._engine.flush_cache()
                self._owes_report = True
            case ReleaseCache():
                self._engine.release_cache()
                self._channel.send(CacheReleased())
                self._owes_report = True
            case LoadAdapter(adapter=adapter, path=path):
                self._channel.send(AdapterLoaded(adapter, self._load_error(adapter, Path(path))))
                self._owes_report = True
            case DropAdapter(adapter=adapter):
                self._engine.drop_adapter(adapter)
                self._owes_report = True
            case SetProfiling(max_s=max_s):
                self._set_profiling(max_s)
                self._owes_report = True

    def _set_profiling(self, max_s: float) -> None:
        if self._profiler is None:
            return
        if max_s:
            self._profiler.begin(max_s)
        else:
            self._profiler.end()

    def _load_error(self, adapter: str, path: Path) -> str:
        """Empty when it is loaded."""
        try:
            self._engine.load_adapter(adapter, path)
        except ConfigError as exc:
            return str(exc)
        return ""
