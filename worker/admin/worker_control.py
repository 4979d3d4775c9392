"""What operators can do to a worker: pause, continue, drain, flush, put to sleep, ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, assert_never

from shared.admin.control import (
    MAX_PROFILE_S,
    CheckWeights,
    Continue,
    ControlReply,
    ControlRequest,
    Drain,
    FlushCache,
    GetStats,
    Kill,
    LoadLora,
    Pause,
    PauseMode,
    Sleep,
    StartProfile,
    StopProfile,
    UnloadLora,
    UpdateWeights,
    WakeUp,
    WorkerStats,
)
from shared.errors import ConfigError
from shared.protocol.role_cards import WorkerState
from shared.telemetry.log import get_logger
from worker.engine_child.engine_host import EngineHost
from worker.requests.request_runner import RequestRunner
from worker.weights.adapters import Adapters
from worker.weights.checkpoint import Checkpoint
from worker.weights.worker_model import ServedWeights

_UPDATING = "the weights are being updated"
_FALLING_ASLEEP = "the worker is falling asleep"

log = get_logger(__name__)


class WeightUpdate:
    """Empties the worker, then starts another engine; what fails leaves the old weights in use."""

    def __init__(
        self, engine: EngineHost, runner: RequestRunner, weights: ServedWeights, num_nodes: int
    ) -> None:
        self._num_nodes = num_nodes
        self._engine = engine
        self._runner = runner
        self._weights = weights

    async def checked(self, model_path: str) -> Checkpoint:
        """The checkpoint there, if it fits. Raises ConfigError."""
        if self._num_nodes > 1:  # the others would load their old ones
            raise ConfigError(
                f"weights that nnodes={self._num_nodes} hosts share are not replaced while they "
                "run: start all of them with the new folder"
            )
        return await asyncio.to_thread(self._weights.checkpoint.successor, model_path)

    async def check_unchanged(self) -> None:
        """Raises ConfigError when another engine would load other weights than those served."""
        await asyncio.to_thread(self._weights.checkpoint.check_unchanged)

    async def run(self, checkpoint: Checkpoint, finish_timeout_s: float) -> None:
        """The runner takes nothing when this begins. Raises ConfigError."""
        log.info("weights_update_begins", path=str(checkpoint.path), num_held=self._runner.num_held)
        await self._runner.empty(finish_timeout_s)
        if (await self.checked(str(checkpoint.path))).revision != checkpoint.revision:
            raise ConfigError(f"{checkpoint.path} has changed since it was checked")
        self._runner.flush_cache()
        await self._engine.replace(checkpoint.path)
        self._weights.checkpoint = checkpoint
        log.info("weights_updated", path=str(checkpoint.path), revision=checkpoint.revision)


class ControlledWorker(Protocol):
    """What operators reach of the worker itself."""

    def stats(self) -> WorkerStats: ...

    def show(self) -> None:
        """Its card has changed."""

    def drain(self, timeout_s: float | None) -> None:
        """Leave; runs may finish for so long, if that is told."""

    @property
    def is_leaving(self) -> bool: ...


class Control:
    """One order after the other. What takes long is begun here, and seen in the worker card."""

    def __init__(
        self,
        worker_id: str,
        engine: EngineHost,
        runner: RequestRunner,
        weight_update: WeightUpdate,
        adapters: Adapters,
        worker: ControlledWorker,
        profile_dir: str | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._runner = runner
        self._weight_update = weight_update
        self._adapters = adapters
        self._worker = worker
        self._profile_dir = profile_dir
        self._lock = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._frozen_until = 0.0  # of the loop's clock
        self._doing = ""  # what takes long
        self.num_updates = 0  # begun, of weights or to sleep and wake
        self.update_error = ""  # of the last one
        self.state: WorkerState | None = None  # PAUSED or FROZEN, if an operator wants it so

    async def run(self) -> None:
        """Until cancelled: owns what takes long."""
        async with asyncio.TaskGroup() as self._tasks:
            await asyncio.Event().wait()

    @property
    def is_updating(self) -> bool:
        return self._doing == _UPDATING

    @property
    def is_asleep(self) -> bool:
        """Or about to be: what comes for it waits."""
        return self._doing == _FALLING_ASLEEP or self._engine.sleep_level > 0

    async def handle(self, request: ControlRequest) -> ControlReply:
        """Raises ConfigError for what cannot be done now."""
        async with self._lock:
            match request:
                case Pause():
                    await self._pause(request)
                case Continue():
                    self._continue()
                case Drain():
                    self._leave(request)
                case Kill():
                    raise AssertionError("the service dies by itself")
                case FlushCache():
                    self._runner.flush_cache()
                case GetStats():
                    return ControlReply(self._worker_id, True, stats=self._worker.stats())
                case CheckWeights():
                    checkpoint = await self._weight_update.checked(request.model_path)
                    return ControlReply(self._worker_id, True, card=checkpoint.card)
                case UpdateWeights():
                    await self._begin_update(request)
                case Sleep():
                    self._begin_sleep(request)
                case WakeUp():
                    await self._wake_up()
                case LoadLora(revision=revision):
                    return await self._load_lora(revision)
                case UnloadLora():
                    await self._adapters.sync()
                case StartProfile(max_s=max_s):
                    self._profile(max_s)
                case StopProfile():
                    self._profile(0.0)
                case _:
                    assert_never(request)
        self._worker.show()
        return ControlReply(self._worker_id, True, num_updates=self.num_updates)

    def _profile(self, max_s: float) -> None:
        """0: no longer."""
        if self._profile_dir is None:
            raise ConfigError("profiles need --profile-dir at the worker's start")
        if not 0 <= max_s <= MAX_PROFILE_S:
            raise ConfigError(f"max_s is {max_s}, must be above 0, up to {MAX_PROFILE_S:g}")
        self._engine.set_profiling(max_s)

    async def _load_lora(self, revision: str) -> ControlReply:
        await self._adapters.sync()
        error = await self._adapters.outcome(revision)
        return ControlReply(self._worker_id, not error, error, refusal=error)

    async def _pause(self, pause: Pause) -> None:
        self._check_awake()
        if not pause.freeze_s > 0:
            raise ConfigError(f"freeze_s is {pause.freeze_s}, must be above 0")
        await self._runner.pause()
        self._thaw()
        if pause.mode is PauseMode.FREEZE:
            self._freeze(pause.freeze_s)
        else:
            self.state = WorkerState.PAUSED

    def _continue(self) -> None:
        self._check_awake()
        self._thaw()
        self.state = None
        self._runner.unpause()

    def _leave(self, drain: Drain) -> None:
        if drain.timeout_s is not None and not drain.timeout_s >= 0:
            raise ConfigError(f"timeout_s is {drain.timeout_s}, must be at least 0")
        self._thaw()
        self._worker.drain(drain.timeout_s)

    def _check_stays(self) -> None:
        if self._worker.is_leaving:
            raise ConfigError("the worker is being drained")
        if self._doing:
            raise ConfigError(self._doing)

    def _check_awake(self) -> None:
        self._check_stays()
        if self._engine.sleep_level:
            raise ConfigError("the worker is asleep: wake it up first")

    def _freeze(self, freeze_s: float) -> None:
        """Who freezes a worker and forgets it shall not hold its requests for ever."""
        tasks = self._tasks
        assert tasks is not None, "run() comes first"
        self.state = WorkerState.FROZEN
        self._engine.set_frozen(True)
        loop = asyncio.get_running_loop()
        self._frozen_until = loop.time() + freeze_s
        loop.call_at(self._frozen_until, lambda: tasks.create_task(self._end_freeze()))

    def _thaw(self) -> None:
        self._engine.set_frozen(False)

    async def _begin_update(self, update: UpdateWeights) -> None:
        self._check_stays()
        if not update.finish_timeout_s >= 0:
            raise ConfigError(f"finish_timeout_s is {update.finish_timeout_s}, must be at least 0")
        checkpoint = await self._weight_update.checked(update.model_path)
        if update.revision not in ("", checkpoint.revision):
            raise ConfigError(
                f"{update.model_path} is revision {checkpoint.revision} here, not {update.revision}"
            )
        patience_s = self._patience_s(update.finish_timeout_s)
        self._begin(_UPDATING, lambda: self._weight_update.run(checkpoint, patience_s))

    def _begin_sleep(self, sleep: Sleep) -> None:
        self._check_stays()
        if not sleep.finish_timeout_s >= 0:
            raise ConfigError(f"finish_timeout_s is {sleep.finish_timeout_s}, must be at least 0")
        self._check_level(sleep.level)
        if self._engine.sleep_level != sleep.level:
            self._begin(_FALLING_ASLEEP, lambda: self._fall_asleep(sleep))

    def _check_level(self, level: int) -> None:
        """Raises ConfigError where a worker cannot sleep so."""
        if level not in (1, 2):
            raise ConfigError(f"level is {level}, must be 1 or 2")
        if level == 2:
            return
        if self._engine.sleep_level == 2:
            raise ConfigError("the worker is asleep at level 2: wake it up first")
        ready = self._engine.ready
        if ready is None:
            raise ConfigError("the engine is loading: only level 2 is possible now")
        if not ready.can_release_cache:
            raise ConfigError(
                "level 1 is not possible: here the cache goes only with the weights, at level 2"
            )

    async def _fall_asleep(self, sleep: Sleep) -> None:
        await self._runner.empty(self._patience_s(sleep.finish_timeout_s))
        self._runner.flush_cache()
        await self._engine.fall_asleep(sleep.level)
        log.info("asleep", sleep_level=sleep.level)

    async def _wake_up(self) -> None:
        """Raises ConfigError when there is nothing to load any more. One that was paused before is
        so afterwards.
        """
        self._check_stays()
        if self._engine.sleep_level == 2:
            await self._weight_update.check_unchanged()
        self.num_updates += 1
        self.update_error = ""
        self._engine.wake_up()
        if self.state is None:
            self._runner.unpause()

    def _patience_s(self, finish_timeout_s: float) -> float:
        """What stands still cannot finish."""
        return 0.0 if self.state is WorkerState.FROZEN else finish_timeout_s

    def _begin(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None, "run() comes first"
        self._doing = what
        self.num_updates += 1
        self.update_error = ""
        self._tasks.create_task(self._carry_out(work))

    async def _carry_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """A worker that was paused before is so afterwards."""
        try:
            await self._runner.pause()
            await work()
        except ConfigError as exc:
            log.error("order_not_carried_out", order=self._doing, error=str(exc))
            self.update_error = str(exc)
        finally:
            self._doing = ""
        if self.state is None and not self._engine.sleep_level:
            self._runner.unpause()
        self._worker.show()

    async def _end_freeze(self) -> None:
        """It took too long: others may have room for what stands still here."""
        async with self._lock:
            is_over = asyncio.get_running_loop().time() >= self._frozen_until
            if self.state is not WorkerState.FROZEN or not is_over:
                return
            log.warning("frozen_too_long", num_requests=self._runner.num_held)
            await self._runner.hand_over()
            self._thaw()
            self.state = WorkerState.PAUSED
        self._worker.show()
