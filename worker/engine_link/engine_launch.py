"""Starts the process of an engine: imports next to nothing, so that it can come first."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import worker
from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """A process that has been started, and our end of its socket: whoever takes both owns both.

    It loads by itself, and tells of it on the socket, where it is heard whenever somebody listens.
    """

    model_path: str
    process: subprocess.Popen[bytes]
    connection: socket.socket

    @classmethod
    def start(cls, config: EngineConfig) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own module
                # -P: a folder named `worker` in the current directory is not ours.
                [
                    *(sys.executable, "-P", "-m", config.program),
                    *(str(theirs.fileno()), config.to_json()),
                ],
                pass_fds=(theirs.fileno(),),
                env=engine_environment(),
            )
        return cls(config.model_path, process, ours)

    def drop(self) -> None:
        """It is not needed."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def engine_environment() -> dict[str, str]:
    """Ours, and the folder that `worker` was imported from.

    By default the engine's threads sleep while they wait for each other. Spinning, they take the
    core that the other one of them, or we, would need: on busy cores steps took 3 to 15 times as
    long.
    """
    assert worker.__file__ is not None
    folder = str(Path(worker.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    python_path = os.pathsep.join(filter(None, [folder, inherited]))
    return {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"PYTHONPATH": python_path}
