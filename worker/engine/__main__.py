"""The engine process: `python -m worker.engine SOCKET_FD CONFIG_JSON`, started by EngineProcess."""

from __future__ import annotations

import sys

from shared.cli.garbage import importing_much, settle_garbage
from shared.telemetry.log import setup_logging
from worker.engine.loading.load_progress import LoadPhases
from worker.engine.process import leave, run_program
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineLoading


def _run(config_json: str, channel: EngineChannel) -> None:
    config = EngineConfig.from_json(config_json)
    setup_logging("engine", config.log_level, config.log_format)
    config.check()
    channel.send(EngineLoading("import torch", 0.0))
    phases = LoadPhases()
    phases.enter("import torch")
    with importing_much():
        from worker.engine.loading.engine_loader import EngineLoader

    loop = EngineLoader(config, channel, phases).load()
    settle_garbage()
    loop.run()


if __name__ == "__main__":
    leave(run_program(sys.argv[1:], _run))
