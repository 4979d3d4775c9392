"""A request with an idempotency key, as `KeyedStarts` wants it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from frontend.inference.acceptor import Acceptor
from frontend.inference.idempotency.keyed_start import Absent
from frontend.inference.resuming.resumer import Resumer
from frontend.jobs.job import Caller, Job
from frontend.surfaces.answer import Answer
from frontend.surfaces.job_reader import JobReader
from shared.protocol.reply import Surface
from shared.protocol.request import RequestGroup


@dataclass(slots=True)
class KeyedRequest:
    """What is checked once stays checked."""

    jobs: JobReader
    acceptor: Acceptor
    resumer: Resumer
    surface: Surface
    body: dict[str, Any]
    caller: Caller
    arrived_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    job: Job | None = None

    async def validate(self) -> None:
        if self.job is None:
            self.job = await self.jobs.job(self.surface, self.body, self.caller)

    async def queue(self, group: RequestGroup, *, is_first: bool) -> Answer | Absent:
        assert self.job is not None, "checked before"
        answer = await self.acceptor.queue(
            self.job, group, self.caller, self.arrived_at, is_shared=True, is_first=is_first
        )
        return Absent.OVER if answer is None else answer

    async def join(self, group: RequestGroup) -> Answer | Absent:
        return await self.resumer.join(group, self.caller, stream=bool(self.body.get("stream")))
