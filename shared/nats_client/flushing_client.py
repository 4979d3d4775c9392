"""A connection to NATS on which sending does not fail because the connection has just broken."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client


class FlushingClient(Client):
    """What is to be sent then waits for the next connection, as it does a moment later.

    nats-py sends at once where its own flushing task has ended, before it knows that the connection
    is gone: then whoever publishes or asks hears what the transport says, RuntimeError on uvloop.
    """

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        try:
            return await super()._flush_pending(force_flush)
        except (OSError, RuntimeError) as exc:
            await self._process_op_err(exc)
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
