"""The nats-server of a stack that brings its own: found, configured, and known to be up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.local.data_folder import DataFolder
from deploy.processes.kept_process import KeptProcess, Launch
from shared.errors import ConfigError
from shared.storage.byte_budget import ByteBudget

_FULL = "no space left on device"  # in the server's own lines
_ROOM_BYTES = 64 << 20
_POLL_S = 1.0


class FullStore:
    """Starts the server anew once there is space again: what it could not write to a full volume it
    does not try again, nor anything else of that stream.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_full = asyncio.Event()

    def note(self, line: str) -> None:
        """The server has said this."""
        if _FULL in line:
            self._is_full.set()

    async def watch(self, server: KeptProcess) -> None:
        """Until cancelled."""
        while True:
            await self._is_full.wait()
            while shutil.disk_usage(self._folder).free < _ROOM_BYTES:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            self._is_full.clear()
            server.renew()
            await asyncio.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class NatsChild:
    """How to start the server on its store, again and again on the same port."""

    binary: str
    port: int
    folder: Path
    config_file: Path
    store: FullStore

    @classmethod
    def prepare(cls, binary: str, port: int, data: DataFolder, budget: ByteBudget) -> NatsChild:
        """Write the configuration file. Raises ConfigError."""
        folder = data.path / "nats"
        config_file = data.path / "nats.conf"
        settings = {
            "server_name": "jetflock-local",
            "listen": f"127.0.0.1:{port}",
            "jetstream": {
                "store_dir": str(folder),
                "max_file_store": budget.total,
            },
        }
        try:
            folder.mkdir(exist_ok=True)
            config_file.write_text(json.dumps(settings, indent=2) + "\n")
        except OSError as exc:
            raise ConfigError(
                f"cannot write to the data folder {data.path}: {exc.strerror}; "
                "name another by --data-dir"
            ) from exc
        return cls(binary, port, folder, config_file, FullStore(folder))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def launch(self) -> Launch:
        # Its idle threads look for work where the engine should run: few are enough here.
        num_threads = max(1, (os.cpu_count() or 1) // 4)
        env = {"GOMAXPROCS": str(num_threads)} | os.environ
        return Launch([self.binary, "-c", str(self.config_file)], env)

    async def wait_until_up(self) -> None:
        """Returns when the server greets; the caller sets the time limit."""
        while not await greets(self.port):  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.02)


async def greets(port: int) -> bool:
    """Whether a nats-server listens there."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        return await reader.read(4) == b"INFO"
    finally:
        writer.transport.abort()


def is_worth_showing(line: str) -> bool:
    """The server's routine lines are not."""
    return "[INF]" not in line and "[DBG]" not in line and "[TRC]" not in line
