"""Processes that have not been heard for a moment: are they still there?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.liveness.presence import is_absent

_ASK_AGAIN_S = 0.1  # while it is absent
_MAX_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """With processes of one role."""

    pause_s: float  # between the first two questions to one that is there; then ever longer
    max_pause_s: float
    absent_s: float  # one whose connection broke is back before


@dataclass(slots=True)
class _Silence:
    """What is known of one process."""

    ask_at: float
    pause_s: float
    absent_since: float | None = None


class SilentPeers:
    """Asks the server about them, ever more seldom while they are there."""

    def __init__(self, cluster: Cluster, patience: Patience) -> None:
        self._cluster = cluster
        self._patience = patience
        self._silences: dict[str, _Silence] = {}
        self._at_once = asyncio.Semaphore(_MAX_AT_ONCE)

    def forget(self) -> None:
        """Our own connection broke: so may theirs have done, and they come back one by one."""
        self._silences.clear()

    @property
    def num_absent(self) -> int:
        """Whose absence was told by the last question."""
        return sum(silence.absent_since is not None for silence in self._silences.values())

    async def gone(self, silent: Collection[str]) -> set[str]:
        """Of all incarnations that are silent now, those that were absent for long enough."""
        now = time.monotonic()
        self._silences = {peer: each for peer, each in self._silences.items() if peer in silent}
        for peer in silent:
            self._silences.setdefault(peer, _Silence(now, self._patience.pause_s))
        due = [peer for peer, silence in self._silences.items() if now >= silence.ask_at]
        await asyncio.gather(*(self._ask(peer) for peer in due))
        return {peer for peer, silence in self._silences.items() if self._is_gone(silence)}

    async def _ask(self, peer: str) -> None:
        async with self._at_once:
            absent = await is_absent(self._cluster.nc, self._cluster.subjects, peer)
        silence, now = self._silences.get(peer), time.monotonic()
        if silence is None:
            return
        if absent:
            silence.absent_since = silence.absent_since or now
            silence.ask_at = now + _ASK_AGAIN_S
        else:
            silence.absent_since = None
            silence.ask_at = now + silence.pause_s
            silence.pause_s = min(2 * silence.pause_s, self._patience.max_pause_s)

    def _is_gone(self, silence: _Silence) -> bool:
        since = silence.absent_since
        return since is not None and time.monotonic() - since >= self._patience.absent_s
