"""What a worker serves: a model as it is registered, what belongs to it on this machine, and how it
is announced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tokenizers import Tokenizer

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError
from shared.protocol.model_cards import ModelCard
from shared.telemetry.log import get_logger
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import LoraFolder

_RETRY_S = 5.0

log = get_logger(__name__)


@dataclass(slots=True)
class ServedWeights:
    """Shared by all that must know. Invariant: it changes only while nothing is held, so that the
    revision at a claim is that of the tokens which follow it.
    """

    checkpoint: Checkpoint

    @property
    def revision(self) -> str:
        return self.checkpoint.revision


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One model; only its weights may be replaced while the worker lives."""

    card: ModelCard
    tokenizer: Tokenizer
    weights: ServedWeights
    loras: LoraFolder


class Announcer:
    """Says that a model may be asked for, once it is loaded. What was withdrawn while NATS was away
    is announced again.
    """

    def __init__(self, catalog: ModelCatalog, pool: str, *, is_kept: bool = False) -> None:
        self._catalog = catalog
        self._pool = pool
        self._is_kept = is_kept
        self._wake = asyncio.Event()

    def announce_soon(self) -> None:
        """The model is loaded, or may have been withdrawn since."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._catalog.announce(self._pool, is_kept=self._is_kept)
            except BrokerError as exc:
                log.warning("model_not_announced", error=str(exc))
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
