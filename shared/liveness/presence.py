"""Whether a process is there: the server knows at once when its last connection is gone.

Every process listens on a subject of its own. Nobody answers there; but a question on it comes
back from the server in a millisecond when nobody listens any more, long before a heartbeat expires.
Silence says nothing: a process that was stopped still has its subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from shared.subjects import Subjects

_ANSWER_S = 0.25  # a refusal takes a millisecond


@asynccontextmanager
async def present(nc: Client, subjects: Subjects, incarnation: str) -> AsyncIterator[asyncio.Event]:
    """Until the end of the block, or of the connection, this process is there.

    The event is set by every question that is heard.
    """
    heard = asyncio.Event()

    async def on_question(_: Msg) -> None:
        heard.set()

    subscription = await nc.subscribe(subjects.presence(incarnation), cb=on_question)
    try:
        yield heard
    finally:
        if not nc.is_closed:
            await subscription.unsubscribe()


async def is_absent(nc: Client, subjects: Subjects, incarnation: str) -> bool:
    """Whether the server says that nobody listens. One that is just reconnecting is absent, too."""
    try:
        await nc.request(subjects.presence(incarnation), b"", _ANSWER_S)
    except NoRespondersError:
        return True
    except NatsError:
        return False
    return False
