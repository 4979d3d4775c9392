"""Holds a worker that is started before NATS is up: it loads meanwhile, and goes on when it may."""

from __future__ import annotations

import os
import sys

_CHUNK_BYTES = 4096


def wait_at_gate() -> None:
    """Until standard input ends: who started this process closes it when the streams are there.

    Call it before the event loop runs. A SIGTERM ends the process meanwhile, as it should.
    """
    while os.read(sys.stdin.fileno(), _CHUNK_BYTES):
        pass
