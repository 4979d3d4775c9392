"""The LoRA adapters of a worker: those that its model's card lists, on disk and in the engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from shared.catalog.adapter_catalog import AdapterCatalog
from shared.errors import BrokerError, BrokerUnavailable, ConfigError, ProtocolError
from shared.protocol.model_cards import AdapterCard
from shared.telemetry.log import get_logger
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_messages import AdapterLoaded
from worker.weights.lora_folder import LoraFolder

_RETRY_S = 5.0
_LOAD_TIMEOUT_S = 60.0

log = get_logger(__name__)


class Adapters:
    """Told by their revision. Invariant: what `has` tells was given to the engine that runs now,
    ahead of any request that names it.

    Files come from the object store, whoever put them there, into a folder of our own: an engine
    that is started again finds what the first one found.
    """

    def __init__(
        self,
        catalog: AdapterCatalog,
        pool: str,
        engine: EngineHost,
        loras: LoraFolder,
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._engine = engine
        self._folder = loras.path
        self._required = loras.required
        self._lock = asyncio.Lock()
        self._engine_is_new = asyncio.Event()
        # What the engine was told to load, and what it said: "", or why it could not.
        self._loads: dict[str, asyncio.Future[str]] = {}

    async def run(self) -> None:
        """Gives each new engine its adapters. Raises ConfigError when one is required and cannot be
        loaded.
        """
        while True:
            await self._engine_is_new.wait()
            self._engine_is_new.clear()
            try:
                await self.sync()
            except BrokerError as exc:
                log.warning("adapters_not_read", error=str(exc))
                await asyncio.sleep(_RETRY_S)
                self._engine_is_new.set()
                continue
            for revision, name in self._required.items():
                if revision in self._loads and (error := await self.outcome(revision)):
                    raise ConfigError(f"lora {name!r}: {error}")

    def on_ready(self) -> None:
        """Another engine than before, with no adapters."""
        self._loads = {}
        self._engine_is_new.set()

    def on_loaded(self, loaded: AdapterLoaded) -> None:
        if loaded.error:
            log.error("adapter_not_loaded", adapter=loaded.adapter, error=loaded.error)
        future = self._loads.get(loaded.adapter)
        if future is not None and not future.done():
            future.set_result(loaded.error)

    def has(self, revision: str) -> bool:
        """Whether requests with it may be given to the engine; "" is none."""
        return not revision or revision in self._loads

    async def ensure(self, revision: str) -> bool:
        """Load it if need be. False: it is not (any more) one of the model's.

        Raises BrokerError when that cannot be found out, or it cannot be fetched, now.
        """
        if not self.has(revision):
            await self.sync()
        return self.has(revision)

    async def outcome(self, revision: str) -> str:
        """What became of a load; "": it is loaded."""
        future = self._loads.get(revision)
        if future is None:
            return "the model has no such adapter"
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                return await asyncio.shield(future)
        except TimeoutError:
            return f"it was not loaded in {_LOAD_TIMEOUT_S:g} s"

    async def sync(self) -> None:
        """Load what the card lists and the engine lacks, drop what it does not list.

        Requests that run with an adapter that is dropped go on to their end. Raises BrokerError.
        """
        async with self._lock:
            if self._engine.ready is None:
                raise BrokerUnavailable("the engine is not ready")  # as if the order came later
            cards = {card.revision: card for card in await self._catalog.cards(self._pool)}
            for revision in self._loads.keys() - cards.keys():
                self._drop(revision)
            for card in cards.values():
                if card.revision not in self._loads:
                    await self._load(card)

    async def _load(self, card: AdapterCard) -> None:
        loads = self._loads
        path = self._folder / card.revision
        if not path.exists():
            await self._fetch(card, path)
        if loads is not self._loads or self._engine.ready is None:
            raise BrokerUnavailable("the engine was started again")
        loads[card.revision] = asyncio.get_running_loop().create_future()
        self._engine.load_adapter(card.revision, path)
        log.info("adapter_loading", adapter=card.name, revision=card.revision)

    async def _fetch(self, card: AdapterCard, path: Path) -> None:
        """Raises BrokerError."""
        try:
            files = await self._catalog.files(self._pool, card.revision)
            await asyncio.to_thread(files.write, path)
        except (ConfigError, ProtocolError, OSError) as exc:
            log.error("adapter_not_fetched", adapter=card.name, error=str(exc))
            raise BrokerUnavailable(f"cannot fetch the adapter {card.name!r}: {exc}") from exc

    def _drop(self, revision: str) -> None:
        future = self._loads.pop(revision)
        if not future.done():
            future.set_result("it was unloaded")
        self._engine.drop_adapter(revision)
        with contextlib.suppress(OSError):
            for file in (self._folder / revision).iterdir():
                file.unlink()
            (self._folder / revision).rmdir()
        log.info("adapter_dropped", revision=revision)
