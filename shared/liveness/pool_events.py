"""What happens to a pool, told to whoever watches: kept for a day, promised to nobody."""

from __future__ import annotations

import contextlib
import socket
import time

from nats.aio.client import Client
from nats.errors import Error as NatsError

from shared.protocol.codec import encode
from shared.protocol.role_cards import PoolEvent, WorkerEvent
from shared.subjects import Subjects

STARTING, GONE = "starting", "gone"  # states that no worker can tell of itself


class PoolEvents:
    """Tells events of one pool. While the broker is away they wait, or are lost."""

    def __init__(self, nc: Client, subjects: Subjects, pool: str, model: str) -> None:
        self._nc = nc
        self._subject = subjects.event(pool)
        self._pool = pool
        self._model = model

    async def publish(self, event: PoolEvent) -> None:
        """Publishes it, and does not wait until it is stored."""
        with contextlib.suppress(NatsError):
            await self._nc.publish(self._subject, encode(event))

    async def publish_worker(self, worker: str, state: str, detail: str = "") -> None:
        """Publishes an event of a worker on this host."""
        await self.publish(
            WorkerEvent(
                at=time.time(),
                pool=self._pool,
                model=self._model,
                worker=worker,
                state=state,
                host=socket.gethostname(),
                detail=detail,
            )
        )
