"""An engine process without a model: `python -m worker.engine.scripted SOCKET_FD CONFIG_JSON`."""

from __future__ import annotations

import sys

from worker.engine.process import leave, run_program
from worker.engine.scripted.scripted_engine import scripted_loop
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.scripted_config import ScriptedConfig


def _run(config_json: str, channel: EngineChannel) -> None:
    scripted_loop(ScriptedConfig.from_json(config_json), channel).run()


if __name__ == "__main__":
    leave(run_program(sys.argv[1:], _run))
