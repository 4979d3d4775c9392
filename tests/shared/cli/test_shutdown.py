"""One signal drains, two hurry, three end: in a real process, also when its loop hangs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from shared.cli.shutdown import Shutdown

pytestmark = pytest.mark.e2e

PROGRAM = """
import asyncio, sys, time
from shared.cli.shutdown import Shutdown

async def main():
    shutdown = Shutdown()
    shutdown.listen()
    print("up", flush=True)
    await shutdown.asked.wait()
    print("asked", flush=True)
    await shutdown.grace(asyncio.Event(), 60.0)
    print("hurried", flush=True)
    time.sleep(60.0)

asyncio.run(main())
"""


async def test_grace_ends_with_the_work_with_time_or_with_the_second_signal() -> None:
    shutdown = Shutdown()
    done = asyncio.Event()
    shutdown.ask()
    assert shutdown.asked.is_set()
    assert not await shutdown.grace(done, 0.01)
    waiting = asyncio.create_task(shutdown.grace(done, 60.0))
    await asyncio.sleep(0)
    shutdown.ask()
    async with asyncio.timeout(20.0):
        assert not await waiting
        assert not await shutdown.grace(done, 60.0), "hurried for good"
    done.set()
    assert await Shutdown().grace(done, 0.0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_three_signals(signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        for word in (b"up\n", b"asked\n"):
            assert process.stdout.readline() == word
            process.send_signal(signum)
        while process.stdout.readline() != b"hurried\n":
            pass
        began = time.monotonic()
        process.send_signal(signum)
        assert process.wait(40.0) == -signum
        assert time.monotonic() - began < 30.0, "it did not wait for its loop"


STUCK = """
import asyncio, time
from shared.cli.shutdown import Shutdown

async def main():
    shutdown = Shutdown()
    shutdown.listen(lambda: 0.3, leave_s=0.4)
    print("up", flush=True)
    await shutdown.asked.wait()
    {wait}

asyncio.run(main())
"""


@pytest.mark.parametrize("wait", ["time.sleep(60)", "await asyncio.Event().wait()", "pass"])
def test_a_process_that_waits_for_something_else_is_gone_in_time(wait: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(wait=wait)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        process.terminate()
        assert process.wait(40) == (0 if wait == "pass" else 1)
        assert time.monotonic() - started < 30
