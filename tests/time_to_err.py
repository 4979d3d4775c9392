"""Time in which what must not happen could happen."""

from __future__ import annotations

import asyncio


async def time_to_err(seconds: float) -> None:
    """There is no condition to wait for: it is asserted next that nothing has gone wrong."""
    await asyncio.sleep(seconds)
