"""What comes in together begins a few at a time, and what only looks at once."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from starlette.types import Receive, Scope, Send

from frontend.http.listener import Entrance


async def test_of_many_requests_a_few_begin_in_each_turn_of_the_loop() -> None:
    begun: list[str] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        begun.append(scope["method"])

    nothing: Any = None
    entrance = Entrance(app, lambda: None)
    coming = [
        asyncio.create_task(entrance({"method": method}, nothing, nothing))
        for method in ["POST"] * 40 + ["GET"]
    ]
    leaver = coming[20]
    nums = []
    while len(begun) < 40:
        await asyncio.sleep(0)
        nums.append(begun.count("POST"))
        leaver.cancel()
    assert nums[0] == 16, "the rest waits"
    assert begun[16] == "GET"
    assert max(after - before for before, after in itertools.pairwise(nums)) <= 16
    await asyncio.wait(coming)
    assert begun.count("POST") == 39, "one has left"
    begun.clear()
    await entrance({"method": "POST"}, nothing, nothing)
    assert begun == ["POST"]
