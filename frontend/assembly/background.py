"""What runs beside the transports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Background(Protocol):
    """A part that does its own work all the while."""

    async def run(self) -> None:
        """Until cancelled."""
        ...


def run_all(tasks: asyncio.TaskGroup, parts: Iterable[Background]) -> list[asyncio.Task[None]]:
    """One task for each."""
    return [tasks.create_task(part.run()) for part in parts]
