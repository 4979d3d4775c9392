"""Says that a model may be asked for, once a worker has loaded it."""

from __future__ import annotations

import asyncio

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError
from shared.telemetry.log import get_logger

_RETRY_S = 5.0

log = get_logger(__name__)


class Announcer:
    """Announces one model. What was withdrawn while NATS was away is announced again."""

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
