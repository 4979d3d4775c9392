"""The disk that holds queue and token log: its room, and how soon it has written."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deploy.local.data_folder import MIN_FREE_BYTES
from jetflock.doctor.finding import Finding, fail, ok, warn
from shared.config import ClusterConfig
from shared.storage.byte_budget import ByteBudget, in_units

_NUM_WRITES = 20
_BLOCK = b"\0" * 4096
_SLOW_S = 0.02


def disk_findings(folder: Path, config: ClusterConfig) -> Iterator[Finding]:
    """`folder` need not be there yet."""
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    if not os.access(place, os.W_OK | os.X_OK):
        yield fail("disk", f"{folder} cannot be written", "change its owner, or name a --data-dir")
        return
    yield _room(place, folder, config)
    yield _speed(place)


def _room(place: Path, folder: Path, config: ClusterConfig) -> Finding:
    free = shutil.disk_usage(place).free
    wanted = ByteBudget.of(config).total
    text = f"{in_units(free)} free for {folder}"
    if free < MIN_FREE_BYTES:
        return fail("disk", text, f"free {MIN_FREE_BYTES >> 20} MiB, or name another by --data-dir")
    if free < wanted:
        return warn(
            "disk",
            f"{text}, queue and logs may take {in_units(wanted)}: jetflock serve lowers the limits",
            "free some, or lower --log-max-bytes yourself",
        )
    return ok("disk", f"{text}; queue and logs may take {in_units(wanted)}")


def _speed(place: Path) -> Finding:
    """What a power cut cannot take is what was flushed."""
    times = []
    with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
        for _ in range(_NUM_WRITES):
            started = time.perf_counter()
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    median_s = statistics.median(times)
    text = f"4 KiB are written and flushed in {median_s * 1000:.2f} ms (median of {_NUM_WRITES})"
    if median_s > _SLOW_S:
        return warn(
            "flushing", text, "a faster disk; it counts with sync_interval: always and in clusters"
        )
    return ok("flushing", text)
