"""Which GPUs of this machine a worker has: one that no other has, while there are enough."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from shared.machine.gpu_driver import VISIBLE_DEVICES

_DRIVER = Path("/proc/driver/nvidia/gpus")  # a folder for each


def gpu_share(
    environ: Mapping[str, str], worker_idx: int, num_ranks: int, driver: Path = _DRIVER
) -> dict[str, str]:
    """What the environment of the worker with this index has more.

    With fewer GPUs than all workers want, the next ones begin with the first GPU again: two workers
    on one need a `gpu_memory_utilization` that leaves room for both.
    """
    gpus = _gpus(environ, driver)
    if len(gpus) < max(2, num_ranks):
        return {}
    first = worker_idx * num_ranks
    return {
        VISIBLE_DEVICES: ",".join(gpus[(first + rank) % len(gpus)] for rank in range(num_ranks))
    }


def num_visible_gpus(environ: Mapping[str, str], driver: Path = _DRIVER) -> int | None:
    """0 when nothing of a driver is there, None when their number cannot be known without it."""
    if VISIBLE_DEVICES in environ or driver.is_dir():
        return len(_gpus(environ, driver))
    signs = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the driver's own; that of WSL
    is_there = shutil.which("nvidia-smi") is not None or any(sign.exists() for sign in signs)
    return None if is_there else 0


def _gpus(environ: Mapping[str, str], driver: Path) -> list[str]:
    """The GPUs by number or id. Asks no driver: that would take memory on each of them."""
    if VISIBLE_DEVICES in environ:
        return [gpu.strip() for gpu in environ[VISIBLE_DEVICES].split(",") if gpu.strip()]
    return [str(number) for number in range(len(list(driver.glob("*"))))]
