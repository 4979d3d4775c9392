"""Compares many kept requests, page by page, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from jetflock.replay.comparison import OWN_ENDS, Comparison
from jetflock.replay.journal import Journal, Key
from jetflock.replay.rerunner import Rerunner
from jetflock.running.running_service import ServiceError, chosen_key, frontend_urls
from shared.errors import ConfigError
from shared.subjects import is_sampled

_HOPELESS = 20  # so many failures and nothing else: a model of other tokens, or the like
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, kw_only=True)
class RerunConfig:
    """Flags of the commands that run requests again."""

    url: str = ""
    """Of a frontend, or of several, comma separated; by default that of the jetflock serve that
    runs here, else http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send: of the tenant whose requests they are, or one with reads_kept."""
    api_key_file: Path | None = None
    """File that holds the key."""
    model: str | None = None
    """Model, or adapter, that runs them again, of the same tokens; by default each request's."""
    top: int = 5
    """Alternatives to each token of the second run, up to 20."""
    concurrency: int = 4
    """Requests that are run again at a time."""
    max_requests: int = 1000
    """Compare so many at most; 0: any number."""
    max_tokens: int = 0
    """Begin no other run when the second ones have taken so many tokens, prompts included; 0: any
    number."""
    html: Path | None = None
    """File for the report as a page, with the texts of both runs side by side."""

    def check_counts(self, **least: int) -> None:
        """Raises ConfigError."""
        least = {"concurrency": 1, **least}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}, must be at least {low}")
        if self.top > 20:
            raise ConfigError(f"top is {self.top}, must be at most 20")

    def rerunner(self) -> Rerunner:
        """Raises ConfigError."""
        key = chosen_key(self.api_key, self.api_key_file)
        return Rerunner(frontend_urls(self.url), key, self.model, self.top)


class Pace(Protocol):
    """When others go first."""

    async def turn(self) -> None:
        """Returns when the next request may be run."""
        ...

    async def crowded(self, num_ours: int) -> None:
        """Returns when one that runs has to make room; of what waits so many may be ours."""
        ...


class Series:
    """What is in the journal is not run again."""

    def __init__(
        self,
        rerunner: Rerunner,
        journal: Journal,
        config: RerunConfig,
        share: float,
        pace: Pace | None = None,
    ) -> None:
        """`pace`: None where nobody has to wait."""
        self._rerunner = rerunner
        self._journal = journal
        self._config = config
        self._share = share
        self._pace = pace
        self._slots = asyncio.Semaphore(config.concurrency)
        self._num_running = 0

    @property
    def is_spent(self) -> bool:
        """Whether no other run may begin, or none would succeed."""
        report, config = self._journal.report, self._config
        if report.num_failed >= _HOPELESS and not report.num_compared:
            return True
        num = report.num_compared + report.num_failed + self._num_running
        return bool(
            (config.max_requests and num >= config.max_requests)
            or (config.max_tokens and report.num_made_tokens >= config.max_tokens)
        )

    def chosen(self, page: dict[str, Any]) -> list[dict[str, Any]]:
        """Those of the share that ended by themselves and have not been compared."""
        return [
            each
            for each in page["data"]
            if each["finish_reason"] in OWN_ENDS
            and each["num_output_tokens"]
            and is_sampled(each["id"], self._share)
            and (each["id"], each["choice"]) not in self._journal.done
        ]

    async def compare(self, streams: Sequence[dict[str, Any]]) -> None:
        """All of them, or until nothing may begin."""
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                await self._slots.acquire()
                try:
                    if self._pace is not None:
                        await self._pace.turn()
                except BaseException:
                    self._slots.release()
                    raise
                if self.is_spent:
                    self._slots.release()
                    return
                self._num_running += 1
                tasks.create_task(self._compare(stream))

    async def _compare(self, stream: dict[str, Any]) -> None:
        key = stream["id"], stream["choice"]
        try:
            while (comparison := await self._undisturbed(key)) is None:
                assert self._pace is not None, "it alone disturbs"
                await self._pace.turn()
            self._journal.add(key, comparison)
        except ServiceError as exc:
            self._journal.add_failure(key, str(exc))
        finally:
            self._num_running -= 1
            self._slots.release()

    async def _undisturbed(self, key: Key) -> Comparison | None:
        """None: it was ended to make room for others."""
        if self._pace is None:
            return await self._rerunner.compared(*key)
        running = asyncio.create_task(self._rerunner.compared(*key))
        crowded = asyncio.create_task(self._pace.crowded(self._config.concurrency))
        try:
            await asyncio.wait((running, crowded), return_when=asyncio.FIRST_COMPLETED)
            return await running if running.done() else None
        finally:
            running.cancel()
            crowded.cancel()
            await asyncio.gather(running, crowded, return_exceptions=True)


def share_of(name: str, text: str) -> float:
    """Reads a share, like "5%" or "0.05". Raises ConfigError."""
    with contextlib.suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < share <= 1:
            return share
    raise ConfigError(f"{name} is {text!r}, must be a share as 5% or 0.05, at most 100%")


def seconds_of(name: str, text: str) -> float:
    """Reads a time, like "90s", "15m", "1h" or "2d". Raises ConfigError."""
    with contextlib.suppress(ValueError, KeyError):
        if (seconds := float(text[:-1]) * _UNITS_S[text[-1:]]) > 0:
            return seconds
    raise ConfigError(f"{name} is {text!r}, must be a time as 90s, 15m, 1h or 2d")


def time_of(loads: dict[str, Any]) -> float:
    """Unix seconds by the clock of the frontend that tells its loads."""
    return datetime.fromisoformat(loads["timestamp"]).timestamp()
