"""One nats-server of a chaos run: killed, paused and started again on its store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.local.nats_binary import find_nats_server
from deploy.local.nats_child import greets
from deploy.local.ports import free_port
from deploy.processes.kept_process import ChildProcess

_START_TIMEOUT_S = 20.0


class Broker:
    """Whoever stops it starts it again. Alone, it is all the `Brokers` of a run."""

    def __init__(
        self,
        name: str,
        port: int,
        store: Path,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        sink: Callable[[str], None],
    ) -> None:
        self.name = name
        self.port = port
        self.store = store
        self._arguments = arguments
        self._environ = environ
        self._sink = sink
        self._child: ChildProcess | None = None
        self._pump: asyncio.Task[int] | None = None
        self._starting = asyncio.Lock()

    @classmethod
    def alone(cls, folder: Path, store: Path, sink: Callable[[str], None]) -> Broker:
        """One that has no peers; its configuration is written to the folder."""
        port, name = free_port(), "chaos"
        settings = {
            "server_name": name,
            "listen": f"127.0.0.1:{port}",
            "write_deadline": "2s",
            "jetstream": {"store_dir": str(store), "max_file_store": 64 << 30},
        }
        config = folder / "nats.conf"
        config.write_text(json.dumps(settings))
        return cls(name, port, store, ["-c", str(config)], {}, sink)

    @property
    def servers(self) -> Sequence[Broker]:
        return [self]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns when it greets. Of two faults that overlap, the first to end brings it back."""
        async with self._starting:
            if self._child is None or not self._child.is_running:
                command = [find_nats_server().path, *self._arguments]
                env = {"GOMAXPROCS": "1", **os.environ, **self._environ}
                self._child = await ChildProcess.start(command, env, self._sink)
                self._pump = asyncio.create_task(self._child.wait())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not await greets(self.port):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nats-server {self.name} does not start; see its log")
            await asyncio.sleep(0.02)

    async def is_whole(self) -> bool:
        return await greets(self.port)

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
        if self._child is not None and self._child.is_running:
            os.kill(self._child.pid, signum)
