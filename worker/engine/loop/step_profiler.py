"""A profile of steps, as torch makes it, in a folder of the operator."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.profiler

from shared.telemetry.log import get_logger

log = get_logger(__name__)


class StepProfiler:
    """One at a time, bounded in time: what it keeps grows with each operation.

    A file is one for Chrome's and Perfetto's trace viewers; it names operations and kernels, and
    nothing of requests. It is written by a thread, since a step is waited for meanwhile, and is
    there whole or not at all.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._profile: torch.profiler.profile | None = None
        self._ends_at = 0.0
        self._num_written = 0
        self._writing: threading.Thread | None = None

    def begin(self, max_s: float) -> None:
        if self._profile is not None:
            return
        self.wait()
        self._profile = torch.profiler.profile()
        self._profile.start()
        self._ends_at = self._clock() + max_s
        log.info("profile_begins", max_s=max_s)

    def end(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.stop()
        self._num_written += 1
        path = self._folder / f"engine-{os.getpid()}-{self._num_written}.pt.trace.json"
        self._writing = threading.Thread(target=_write, args=(profile, path), name="profile")
        self._writing.start()

    def maybe_end(self) -> None:
        if self._profile is not None and self._clock() >= self._ends_at:
            self.end()

    def wait(self) -> None:
        """Until the last one is written."""
        if self._writing is not None:
            self._writing.join()


def _write(profile: torch.profiler.profile, path: Path) -> None:
    unfinished = path.with_suffix(".part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        profile.export_chrome_trace(str(unfinished))
        unfinished.replace(path)
    except (OSError, RuntimeError) as exc:
        log.error("profile_not_written", path=str(path), error=str(exc))
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return
    log.info("profile_written", path=str(path))
