"""The engine process: `python -m worker.engine SOCKET_FD CONFIG_JSON`, started by EngineProcess."""

from __future__ import annotations

import socket
import sys
import traceback

from shared.cli.garbage import settle_garbage
from shared.errors import JetflockError
from worker.engine.process.leaving import leave
from worker.engine.process.load_phases import LoadPhases
from worker.engine.process.parent_death import die_with_parent
from worker.engine_link.engine_channel import ChannelClosed, EngineChannel, EngineSocket
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineFailed, EngineLoading

LAST_WORDS_S = 5.0


def main(argv: list[str]) -> int:
    """The exit code: 0 when the I/O process closed the socket."""
    die_with_parent()
    socket_fd, config_json = argv
    channel = EngineSocket(socket.socket(fileno=int(socket_fd)))
    try:
        _run(EngineConfig.from_json(config_json), channel)
        return 0
    except ChannelClosed:
        return 0
    except JetflockError as exc:
        return _fail(channel, str(exc))
    except Exception as exc:
        traceback.print_exc()
        return _fail(channel, f"{type(exc).__name__}: {exc}")


def _run(config: EngineConfig, channel: EngineChannel) -> None:
    """Ends with ChannelClosed, or with what went wrong."""
    config.check()
    if config.scripted:
        from worker.engine.scripted.scripted_engine import ScriptedEngine

        ScriptedEngine(config, channel).run()
    else:
        channel.send(EngineLoading("import torch", 0.0))
        phases = LoadPhases()
        phases.enter("import torch")
        from worker.engine.loading.engine_loader import EngineLoader

        engine = EngineLoader(config, channel, phases).load()
        settle_garbage()
        engine.run()


def _fail(channel: EngineSocket, message: str) -> int:
    """Tells why, as far as somebody still listens."""
    try:
        channel.send(EngineFailed(message))
        channel.drain(LAST_WORDS_S)
    except ChannelClosed:
        pass
    return 1


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
