"""The compiler at work beside the first tasks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from bench.gpu.task_process import kill_tree


class KernelBuild:
    """Of flashinfer's kernels. A context: what still compiles at its exit is ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._begin = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu.build_kernels"],
            stdout=sys.stderr,
            env=dict(environment),
        )
        self._is_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        kill_tree(self._process.pid)

    def result(self, limit_s: float) -> dict[str, Any] | None:
        """Waits for it. What became of it, told once."""
        if self._is_told:
            return None
        self._is_told = True
        facts: dict[str, Any] = {"stage": "kernels", "task": "kernels"}
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            kill_tree(self._process.pid)
            return facts | {"failed": f"not compiled in {time.monotonic() - self._begin:.0f} s"}
        if status:
            return facts | {"failed": f"status {status}"}
        return facts | {"seconds": time.monotonic() - self._begin}
