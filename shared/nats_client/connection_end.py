"""Ends connections to NATS and subscriptions, also where the other end hears nothing any more."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from shared.telemetry.log import get_logger

_CLOSE_S = 1.0

log = get_logger(__name__)


async def end_connection(nc: Client) -> None:
    """What still waits to be sent is given a moment.

    A transport that is closed first writes what it holds: into a dead link, until the system gives
    up, which takes many minutes.
    """
    # The server may be gone already; uvloop says that of a closed connection in its own words.
    with contextlib.suppress(OSError, RuntimeError):
        try:
            async with asyncio.timeout(_CLOSE_S):
                await nc.close()
        except TimeoutError:
            log.info("connection_cut")
            abort_transport(nc)


def abort_transport(nc: Client) -> None:
    """What waits to be written is lost; nats-py has no way to do this."""
    writer: asyncio.StreamWriter | None = getattr(nc._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


async def end_subscription(subscription: Subscription) -> None:
    """It ends with its connection, too: a closed one is no error."""
    with contextlib.suppress(nats.errors.Error):
        await subscription.unsubscribe()
