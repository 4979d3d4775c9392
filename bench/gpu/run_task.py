"""The child of `task_process`: `python -m bench.gpu.run_task TASK_JSON RESULTS_SO_FAR`.

Prints a line of JSON for each result; whatever libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from bench.gpu.rig import Rig
from bench.gpu.task import Task


def main(task: Task, known: Path) -> int:
    """0, or 1 behind a line that says what has failed."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _on_term)

    def tell(result: dict[str, Any]) -> None:
        engine = {"engine": task.engine} if task.engine else {}
        lines.write(json.dumps({"stage": task.stage} | result | engine) + "\n")
        lines.flush()

    results = [json.loads(line) for line in known.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        try:
            stage = importlib.import_module(f"bench.gpu.stages.{task.stage}")
            stage.run(Rig.make(task, Path(folder), results, tell))
        except Exception as exc:
            traceback.print_exc()
            tell({"failed": f"{type(exc).__name__}: {exc}"[:300]})
            return 1
    return 0


def _on_term(signum: int, frame: FrameType | None) -> None:
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(Task.from_json(sys.argv[1]), Path(sys.argv[2])))
