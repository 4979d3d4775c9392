"""Puts other weights in the place of those that a worker computes with."""

from __future__ import annotations

import asyncio

from shared.errors import ConfigError
from shared.event_wait import wait_event
from shared.telemetry.log import get_logger
from worker.engine_child.engine_host import EngineHost
from worker.requests.request_runner import RequestRunner
from worker.weights.checkpoint import Checkpoint
from worker.weights.served_weights import ServedWeights

log = get_logger(__name__)


class WeightUpdate:
    """Empties the worker, then starts another engine; what fails leaves the old weights in use."""

    def __init__(self, engine: EngineHost, runner: RequestRunner, weights: ServedWeights) -> None:
        self._engine = engine
        self._runner = runner
        self._weights = weights

    async def checked(self, model_path: str) -> Checkpoint:
        """The checkpoint there, if it fits. Raises ConfigError."""
        return await asyncio.to_thread(self._weights.checkpoint.successor, model_path)

    async def run(self, checkpoint: Checkpoint, finish_timeout_s: float) -> None:
        """The runner takes nothing when this begins. Raises ConfigError."""
        log.info("weights_update_begins", path=str(checkpoint.path), num_held=self._runner.num_held)
        if not await wait_event(self._runner.emptied, finish_timeout_s):
            await self._runner.hand_over()
        if self._runner.num_held:
            raise ConfigError(f"{self._runner.num_held} requests could not be handed over")
        if (await self.checked(str(checkpoint.path))).revision != checkpoint.revision:
            raise ConfigError(f"{checkpoint.path} has changed since it was checked")
        self._runner.flush_cache()
        await self._engine.replace(checkpoint.path)
        self._weights.checkpoint = checkpoint
        log.info("weights_updated", path=str(checkpoint.path), revision=checkpoint.revision)
