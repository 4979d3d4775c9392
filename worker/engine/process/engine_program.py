"""What the process of every engine is around its loop."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable

from shared.errors import JetflockError
from worker.engine.process.parent_death import die_with_parent
from worker.engine_link.engine_channel import ChannelClosed, EngineChannel, EngineSocket
from worker.engine_link.engine_messages import EngineFailed

LAST_WORDS_S = 5.0


def run_program(argv: list[str], run: Callable[[str, EngineChannel], None]) -> int:
    """Of `SOCKET_FD CONFIG_JSON`. `run` is given the configuration and the channel; it ends with
    ChannelClosed, or with what went wrong.

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
