"""The streams that a service moves to, for a role that serves those before them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.liveness.move_watch import MoveWatch
from shared.telemetry.log import get_logger

_RETRY_S = 1.0

Config = TypeVar("Config", bound=ClusterConfig)
Side = TypeVar("Side")

log = get_logger(__name__)


@asynccontextmanager
async def newer_side(
    move: MoveWatch,
    config: Config,
    open_side: Callable[[Config], AbstractAsyncContextManager[Side]],
) -> AsyncIterator[Side]:
    """Wait until a move is announced, and enter what `open_side` makes of the configuration there.

    However often it takes: a BrokerError or ConfigError is logged, and it is tried again.
    """
    await move.announced.wait()
    async with AsyncExitStack() as exits:
        while True:
            try:
                side = await exits.enter_async_context(open_side(move.newer_config(config)))
            except (BrokerError, ConfigError) as exc:
                log.error("newer_streams_not_opened", error=str(exc))
                await asyncio.sleep(_RETRY_S)
            else:
                break
        yield side
