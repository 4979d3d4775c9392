"""Which rivals are gone, as the server tells, and whether it would tell so of us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from detok.rivals import Rivals
from detok.silent_peers import Patience, SilentPeers
from shared.cluster import Cluster
from shared.liveness.heartbeat import SETTLE_S
from shared.liveness.presence import is_absent, present

_TICK_S = 0.1
_PATIENCE = Patience(pause_s=0.1, max_pause_s=0.5, absent_s=0.4)


class RivalWatch:
    """Asks for rivals that are silent, while our own connection has been steady.

    The end of a connection is not the end of its process: one that comes back after `absent_s`
    finds its lease ended, as after a renewal that came too late.
    """

    def __init__(
        self, cluster: Cluster, detok_id: str, rivals: Rivals, on_gone: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._detok_id = detok_id
        self._rivals = rivals
        self._on_gone = on_gone
        self._peers = SilentPeers(cluster, _PATIENCE)
        self._reconnected_at = float("-inf")
        self._num_reconnects = cluster.nc.stats["reconnects"]
        self.has_presence = False
        self.gone: set[str] = set()  # holders

    async def run(self) -> None:
        """Until cancelled; this process is there all the while."""
        async with present(self._cluster.nc, self._cluster.subjects, self._detok_id) as heard:
            await self._hear_ourselves(heard)
            while True:
                if self._has_reconnected():
                    self._reconnected_at = time.monotonic()
                    await self._hear_ourselves(heard)
                await self._look()
                await asyncio.sleep(_TICK_S)

    async def _hear_ourselves(self, heard: asyncio.Event) -> None:
        """A user that may not listen must not say that it does."""
        heard.clear()
        await is_absent(self._cluster.nc, self._cluster.subjects, self._detok_id)
        self.has_presence = heard.is_set()

    def _has_reconnected(self) -> bool:
        before, self._num_reconnects = self._num_reconnects, self._cluster.nc.stats["reconnects"]
        return self._num_reconnects != before

    @property
    def is_steady(self) -> bool:
        """Whether those whose connections broke when ours did have had the time to come back."""
        return time.monotonic() - self._reconnected_at > SETTLE_S

    async def _look(self) -> None:
        if not self.is_steady:
            self._peers.forget()
            self.gone = set()
            return
        self.gone = await self._peers.gone(self._rivals.silent)
        if self.gone:
            self._on_gone()
