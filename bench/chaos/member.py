"""One process of a flock."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from bench.chaos.nats_link import NatsLink
from deploy.processes.kept_process import KeptProcess


class Member:
    """One process of the flock, started again by a supervisor whenever it dies."""

    def __init__(self, role: str, link: NatsLink, kept: KeptProcess, http_port: int) -> None:
        self.role = role
        self.link = link
        self.kept = kept
        self.http_port = http_port  # of the API, or of the metrics

    @property
    def incarnation(self) -> str:
        return self.kept.launch.id

    @property
    def name(self) -> str:
        return self.kept.name

    @property
    def engine(self) -> psutil.Process | None:
        """The engine process of a worker."""
        pid = self.kept.pid
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children() if pid is not None else []
            return children[0] if children else None
        return None

    def signal(self, signum: signal.Signals, *, with_engine: bool = False) -> None:
        """To the process; it may be gone already."""
        pids = [self.kept.pid]
        if with_engine and (engine := self.engine) is not None:
            pids.append(engine.pid)
        for pid in pids:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
