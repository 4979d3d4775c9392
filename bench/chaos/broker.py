"""The nats-server of a chaos run: killed, paused and started again on its store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from deploy.local.child_process import ChildProcess
from deploy.local.nats_child import find_nats_server, greets
from deploy.local.ports import free_port

_START_TIMEOUT_S = 20.0


class Broker:
    """`wait_up` returns when it greets; whoever stops it starts it again."""

    def __init__(self, folder: Path, store: Path, sink: Callable[[str], None]) -> None:
        self.port = free_port()
        self.store = store
        self._folder = folder
        self._sink = sink
        self._child: ChildProcess | None = None
        self._pump: asyncio.Task[int] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns when it greets."""
        settings = {
            "server_name": "chaos",
            "listen": f"127.0.0.1:{self.port}",
            "write_deadline": "2s",
            "jetstream": {"store_dir": str(self.store), "max_file_store": 64 << 30},
        }
        config = self._folder / "nats.conf"
        config.write_text(json.dumps(settings))
        command = [find_nats_server(), "-c", str(config)]
        env = {"GOMAXPROCS": "1"} | os.environ
        self._child = await ChildProcess.start(command, env, self._sink)
        self._pump = asyncio.create_task(self._child.wait())
        await self._wait_up()

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        await self._end(signal.SIGTERM)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def _end(self, signum: signal.Signals) -> None:
        self._signal(signum)
        if self._pump is not None:
            await self._pump

    def _signal(self, signum: signal.Signals) -> None:
        assert self._child is not None, "start() comes first"
        if self._child.is_running:
            os.kill(self._child.pid, signum)

    async def _wait_up(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not await greets(self.port):
            if time.monotonic() > deadline:
                raise TimeoutError("nats-server does not start; see nats.log")
            await asyncio.sleep(0.02)
