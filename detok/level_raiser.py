"""Raises the feature level of the service when no role alive knows less."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, ConfigError
from shared.liveness.heartbeat import Writability
from shared.liveness.living_levels import living_levels
from shared.protocol.role_cards import LevelRecord
from shared.storage.streams import HEARTBEAT_TTL_S
from shared.telemetry.log import get_logger

# A rolling upgrade starts roles one after another, and one that restarts shows no card meanwhile.
STEADY_S = 4 * HEARTBEAT_TTL_S

log = get_logger(__name__)


class LevelRaiser:
    """Every detokenizer has one: the first to store the new level has raised it for all.

    Cards have to have shown the same for a while, during which heartbeats could be written: `seen`
    tells it of the buckets that cards are in. A role that lived all the same is not harmed: it
    reads the level, or a message that bears it, and leaves.
    """

    def __init__(
        self,
        cluster: Cluster,
        detok_id: str,
        seen: Sequence[Writability],
        *,
        look_s: float = 2.0,
        steady_s: float = STEADY_S,
    ) -> None:
        self._cluster = cluster
        self._detok_id = detok_id
        self._level = cluster.level
        self._seen = seen
        self._look_s = look_s
        self._steady_s = steady_s
        self._lowest = 1
        self._lowest_since = time.monotonic()

    async def run(self) -> None:
        """Until what this build knows is in force, or until cancelled."""
        while self._level.in_force < self._level.known:
            await asyncio.sleep(self._look_s)
            try:
                await self.look()
            except CasConflict:
                continue  # somebody else has raised it, or holds it now
            except (BrokerError, ConfigError) as exc:
                self._note(1)
                log.info("feature_level_not_raised", error=str(exc))

    async def look(self) -> None:
        """Raise it if that is due. Raises BrokerError or ConfigError."""
        stored = await self._level.read()
        self._note(await self._lowest_alive())
        if stored.record.is_held or self._lowest <= stored.record.level:
            return
        if time.monotonic() - self._lowest_since >= self._steady_s:
            await self._level.put(LevelRecord(self._lowest), stored.revision)
            await self._level.read()
            log.info("feature_level_raised", feature_level=self._lowest)

    def _note(self, lowest: int) -> None:
        if lowest != self._lowest:
            self._lowest, self._lowest_since = lowest, time.monotonic()

    async def _lowest_alive(self) -> int:
        """1 while a card may be missing that its role could not write."""
        if not all(each.is_steady for each in self._seen):
            return 1
        alive = await living_levels(self._cluster)
        if all(each.id != self._detok_id for each in alive):
            return 1
        return min(each.level for each in alive)
