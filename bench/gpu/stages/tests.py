"""`make test-gpu`: those of our own kernels, or of one of flashinfer's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.gpu.rig import Rig

FOLDER = Path("tests/worker/engine/cuda")
ALONE = FOLDER / "test_on_gpu.py"  # it watches the GPU's memory
OF_FLASHINFER = FOLDER / "test_flashinfer.py"
PROCESSES = 6  # most of a test is loading and compiling
FAILED = ("failure", "error")


def run(rig: Rig) -> None:
    """A result for each test that failed, and one with how many there were."""
    if rig.task.backend != "auto":
        _run(rig, [str(OF_FLASHINFER), "-k", rig.task.backend])
        return
    _run(rig, [str(FOLDER), f"--ignore={ALONE}", f"--ignore={OF_FLASHINFER}", f"-n{PROCESSES}"])
    _run(rig, [str(ALONE)])


def _run(rig: Rig, words: list[str]) -> None:
    report = rig.folder / "junit.xml"
    report.unlink(missing_ok=True)
    # Versions of others than ours may warn.
    fixed = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *fixed, f"--junit-xml={report}", *words]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=_environment(), check=False)
    if not report.exists():
        raise RuntimeError(f"pytest ended with status {done.returncode}")
    for result in results_of(report):
        rig.tell(result)


def results_of(report: Path) -> Iterator[dict[str, Any]]:
    """Of a file that pytest has written for `--junit-xml`."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    for case in suite.iter("testcase"):
        for failure in (each for kind in FAILED for each in case.iter(kind)):
            name, why = f"{case.get('classname')}::{case.get('name')}", failure.get("message", "")
            yield {"test": name.removeprefix("tests.worker.engine.cuda."), "why": why[:200]}
    num_ran = int(suite.get("tests", 0)) - int(suite.get("skipped", 0))
    num_failed = sum(int(suite.get(name, 0)) for name in ("failures", "errors"))
    yield {"ran": num_ran, "passed": num_ran - num_failed}


def _environment() -> dict[str, str]:
    """Without the interpreter of a try on a CPU: tests choose for themselves."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
