"""An engine process without a model: `python -m worker.engine.scripted SOCKET_FD CONFIG_JSON`."""

from __future__ import annotations

import sys

from shared.telemetry.log import setup_logging
from worker.engine.process import leave, run_program
from worker.engine.scripted.scripted_engine import scripted_loop
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.scripted_config import ScriptedConfig


def _run(config_json: str, channel: EngineChannel) -> None:
    config = ScriptedConfig.from_json(config_json)
    setup_logging("engine", config.log_level, config.log_format)
    scripted_loop(config, channel).run()


if __name__ == "__main__":
    leave(run_program(sys.argv[1:], _run))
