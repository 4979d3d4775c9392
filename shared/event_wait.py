"""Waiting for an event with a limit, without losing a cancellation.

`asyncio.wait_for` of Python 3.11 returns the result, and forgets that the task was cancelled, when
both happen in the same turn of the loop; `asyncio.timeout` does not.
"""

from __future__ import annotations

import asyncio


async def wait_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def raise_if_cancelled() -> None:
    """Call after awaiting code that uses `wait_for` inside, as nats-py does."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
