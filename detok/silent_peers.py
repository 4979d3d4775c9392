"""Processes that have not been heard for a moment: are they still there?"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.liveness.presence import is_absent

_ASK_AGAIN_S = 0.1  # while it is absent
_PROMPT_S = 0.03  # for the answers about those who are absent; of one that is there is none
_MAX_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Patience:
    """How long processes of one role are waited for."""

    pause_s: float  # between the first two questions to one that is there; then ever longer
    max_pause_s: float
    absent_s: float  # one whose connection broke is back before


@dataclass(slots=True)
class _Silence:
    """What is known of one process."""

    ask_at: float
    pause_s: float
    is_asked: bool = False  # just now
    absent_since: float | None = None
    absent_s: float = 0.0  # from then to the last answer


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

    @property
    def due_s(self) -> float:
        """Until one that is absent is to be asked for again; infinite while all are there."""
        absent = [each for each in self._silences.values() if each.absent_since is not None]
        return min((each.ask_at for each in absent), default=math.inf) - time.monotonic()

    async def gone(self, silent: Collection[str], tasks: asyncio.TaskGroup) -> set[str]:
        """Those of the incarnations that are silent now that were absent for long enough.

        `tasks` goes on with questions that get no answer: nobody waits for those who are there.
        """
        now = time.monotonic()
        self._silences = {peer: each for peer, each in self._silences.items() if peer in silent}
        for peer in silent:
            self._silences.setdefault(peer, _Silence(now, self._patience.pause_s))
        questions = {
            tasks.create_task(self._ask(peer, silence))
            for peer, silence in self._silences.items()
            if now >= silence.ask_at and not silence.is_asked
        }
        if questions:
            await asyncio.wait(questions, timeout=_PROMPT_S)
        return {peer for peer, silence in self._silences.items() if self._is_gone(silence)}

    async def _ask(self, peer: str, silence: _Silence) -> None:
        silence.is_asked = True
        async with self._at_once:
            absent = await is_absent(self._cluster.nc, self._cluster.subjects, peer)
        silence.is_asked, now = False, time.monotonic()
        if absent:
            silence.absent_since = silence.absent_since or now
            silence.absent_s = now - silence.absent_since
            left_s = self._patience.absent_s - silence.absent_s
            silence.ask_at = now + min(_ASK_AGAIN_S, max(0.0, left_s))
        else:
            silence.absent_since, silence.absent_s = None, 0.0
            silence.ask_at = now + silence.pause_s
            silence.pause_s = min(2 * silence.pause_s, self._patience.max_pause_s)

    def _is_gone(self, silence: _Silence) -> bool:
        return silence.absent_since is not None and silence.absent_s >= self._patience.absent_s
