"""Tasks that each care for one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from nats.errors import Error as NatsError

from shared.errors import JetflockError
from shared.telemetry.log import get_logger

log = get_logger(__name__)


class RequestTasks:
    """Begun while it is open, and cancelled with whoever has opened it."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[asyncio.TaskGroup]:
        """Waits for all tasks at its end. The group is for those that no error may end alone."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            yield group

    @property
    def group(self) -> asyncio.TaskGroup:
        assert self._group is not None, "run() comes first"
        return self._group

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Spawns work for one request: what fails for it is logged, and it will come again."""
        self.group.create_task(_guarded(coroutine))


async def _guarded(coroutine: Coroutine[None, None, None]) -> None:
    """What fails for one request must not end those of the others."""
    try:
        await coroutine
    except (JetflockError, NatsError):
        log.exception("request_task_failed")
