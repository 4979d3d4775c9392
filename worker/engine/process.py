"""What the process of every engine is around its loop, and how it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from shared.errors import JetflockError
from worker.engine_link.engine_channel import ChannelClosed, EngineChannel, EngineSocket
from worker.engine_link.engine_messages import EngineFailed

LAST_WORDS_S = 5.0
PR_SET_PDEATHSIG = 1


def run_program(argv: list[str], run: Callable[[str, EngineChannel], None]) -> int:
    """Runs a program that is started with `SOCKET_FD CONFIG_JSON`. `run` is given the configuration
    and the channel; it ends with ChannelClosed, or with what went wrong.

    Returns the exit code: 0 when the I/O process closed the socket.
    """
    die_with_parent()
    socket_fd, config_json = argv
    channel = EngineSocket(socket.socket(fileno=int(socket_fd)))
    try:
        run(config_json, channel)
        return 0
    except ChannelClosed:
        return 0
    except JetflockError as exc:
        return _fail(channel, str(exc))
    except Exception as exc:
        traceback.print_exc()
        return _fail(channel, f"{type(exc).__name__}: {exc}")


def _fail(channel: EngineSocket, message: str) -> int:
    """Tells why, as far as somebody still listens."""
    try:
        channel.send(EngineFailed(message))
        channel.drain(LAST_WORDS_S)
    except ChannelClosed:
        pass
    return 1


def leave(exit_code: int) -> NoReturn:
    """At once: what libraries do at the end of a process may wait for the GPU, and the GPU for
    another rank, which waits for the end of this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def die_with_parent() -> None:
    """The parent alone decides when it is time to end: other signals that say so are ignored.

    A parent that died before this call is noticed at the socket.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
