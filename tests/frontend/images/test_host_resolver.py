"""Look-ups of hosts: bounded, fair, and never in the threads that others need."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from frontend.images.host_resolver import HostNotFound, HostResolver
from tests.eventually import eventually
from tests.time_to_err import time_to_err


class SlowNames:
    """Name servers that say nothing of some hosts until they are let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.num_asked = 0

    def __call__(self, host: str, port: int) -> list[str]:
        self.num_asked += 1
        if host.startswith("slow"):
            self.let.wait(30)
        if host == "nobody":
            raise OSError("no such host")
        return ["93.184.215.14"]


async def test_slow_names_hold_up_only_whose_they_are() -> None:
    names = SlowNames()
    resolver = HostResolver(names, timeout_s=0.5, max_of_one=2)
    slow = [asyncio.create_task(resolver.resolve(f"slow-{i}", 443, "a")) for i in range(40)]
    await eventually(lambda: names.num_asked == 2)
    await time_to_err(0.05)
    assert names.num_asked == 2, "no more threads than one tenant may have"
    begun_at = time.monotonic()
    assert await resolver.resolve("quick", 443, "b") == ["93.184.215.14"]
    assert await asyncio.to_thread(lambda: 7) == 7, "the threads of all others are free"
    assert time.monotonic() - begun_at < 0.4
    outcomes = await asyncio.gather(*slow, return_exceptions=True)
    assert all(isinstance(outcome, HostNotFound) for outcome in outcomes)
    assert "in time" in str(outcomes[0])
    with pytest.raises(HostNotFound, match="in time"):  # the threads are still taken
        await resolver.resolve("quick", 443, "a")
    names.let.set()
    async with asyncio.timeout(5):
        assert await resolver.resolve("quick", 443, "a") == ["93.184.215.14"]


async def test_what_cannot_be_found_is_told() -> None:
    resolver = HostResolver(SlowNames())
    with pytest.raises(HostNotFound, match="cannot be found"):
        await resolver.resolve("nobody", 443)
    with pytest.raises(HostNotFound, match="cannot be found"):
        await HostResolver().resolve("x" * 300, 443)


async def test_an_address_needs_no_name_server() -> None:
    names = SlowNames()
    resolver = HostResolver(names)
    assert await resolver.resolve("127.0.0.1", 80) == ["127.0.0.1"]
    assert await resolver.resolve("[::1]", 80) == ["::1"]
    assert names.num_asked == 0
