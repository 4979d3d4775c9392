"""Whether a process is alive, and whether it is ready: with the reasons why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

LIVE_PATH = "/health/live"
READY_PATH = "/health/ready"
_INTERVAL_S = 0.25
_MAX_AGE_S = 5.0  # longer than anything but a hang keeps an event loop from turning


@dataclass(frozen=True, slots=True)
class Checkup:
    """Sentences that say why a role is not alive, or not ready; none if it is."""

    not_live: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()


STARTING = Checkup(not_ready=("it is starting",))


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a probe is told, as JSON."""

    status: str
    why: tuple[str, ...] = ()  # not


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """What a probe is told."""

    status_code: int
    body: bytes  # JSON

    @classmethod
    def of(cls, name: str, why_not: tuple[str, ...]) -> HealthAnswer:
        if not why_not:
            return cls(200, msgspec.json.encode(Health(name)))
        return cls(503, msgspec.json.encode(Health(f"not {name}", why_not)))


def live_answer(checkup: Checkup) -> HealthAnswer:
    """503: only a restart can help."""
    return HealthAnswer.of("live", checkup.not_live)


def ready_answer(checkup: Checkup) -> HealthAnswer:
    """503: it does not do its work now, and may do it later."""
    return HealthAnswer.of("ready", (*checkup.not_live, *checkup.not_ready))


class HealthBoard:
    """The last checkup: made on the event loop, read by any thread.

    A loop that has stopped turning makes none; then the board itself says that it is not alive.
    """

    def __init__(self) -> None:
        self._look: Callable[[], Checkup] = lambda: STARTING
        self._checkup = STARTING
        self._looked_at = time.monotonic()

    def watch(self, look: Callable[[], Checkup]) -> None:
        """From now on `look()` tells."""
        self._look = look

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._checkup = self._look()
            self._looked_at = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)

    @property
    def latest(self) -> Checkup:
        age_s = time.monotonic() - self._looked_at
        if age_s <= _MAX_AGE_S:
            return self._checkup
        stuck = f"its event loop has not turned for {age_s:.1f} s"
        return Checkup((*self._checkup.not_live, stuck), self._checkup.not_ready)
