"""How often the queue is looked at for metrics: often while somebody would see a difference."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frontend.cluster.queue_metrics import QueueMetrics
from shared.subjects import Subjects
from tests.eventually import eventually
from tests.time_to_err import time_to_err


class Service:
    """In place of the cluster, and of who reads its state."""

    def __init__(self, num_taken: int) -> None:
        self.subjects = Subjects()
        self.js = self
        self.num_looks = 0
        self._queues = [SimpleNamespace(num_waiting=0, num_taken=num_taken)]

    async def snapshot(self) -> object:
        self.num_looks += 1
        return SimpleNamespace(queues=self._queues)

    async def api(self, _: str) -> dict[str, Any]:
        return {"state": {"bytes": 0, "messages": 0}, "config": {"max_bytes": 1, "max_msgs": 1}}

    def note(self, _: object) -> None:
        """Into its history."""


@pytest.mark.parametrize(
    ("num_taken", "is_read", "is_often"), [(0, False, False), (1, False, True), (0, True, True)]
)
async def test_nobody_looks_often_at_what_nobody_sees(
    monkeypatch: pytest.MonkeyPatch, num_taken: int, is_read: bool, is_often: bool
) -> None:
    monkeypatch.setattr("frontend.cluster.queue_metrics._INTERVAL_S", 0.001)
    service = Service(num_taken)
    part = cast(Any, service)
    metrics = QueueMetrics(part, part, part)
    if is_read:
        list(metrics.collect())
    looking = asyncio.create_task(metrics.run())
    try:
        if is_often:
            await eventually(lambda: service.num_looks >= 5)
        else:
            await time_to_err(0.05)
            assert service.num_looks == 1
    finally:
        looking.cancel()
        await asyncio.wait([looking])
