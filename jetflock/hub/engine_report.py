"""What the engine says of checkpoints: asked in a process of its own, since that imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from shared.errors import JetflockError
from shared.machine.installation import install_command

_REPORT_S = 120.0


class EngineReport(msgspec.Struct, frozen=True):
    """`refusal`: why it is not served at all; `shortage`: why not on this machine, now."""

    refusal: str
    architecture: str
    computed_by: str
    dtype: str
    need: str
    shortage: str


class EngineSilent(JetflockError):
    """The engine's own code could not be asked."""

    exit_status = 1

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem
        self.remedy = remedy


def engine_reports(*paths: Path) -> list[EngineReport]:
    """One of each, with the defaults of every flag. Raises EngineSilent."""
    argv = [sys.executable, "-P", "-m", "worker.engine.loading.model_report", *map(str, paths)]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            argv, capture_output=True, text=True, check=False, timeout=_REPORT_S
        )
    except subprocess.TimeoutExpired:
        problem = f"does not answer in {_REPORT_S:g} s"
        raise EngineSilent(problem, "is the machine overloaded?") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it died"])[-1]
        raise EngineSilent(last, install_command("worker"))
    return [msgspec.json.decode(line, type=EngineReport) for line in done.stdout.splitlines()]
