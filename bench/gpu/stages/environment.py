"""Versions, what the hardware does at most, and what a launch costs."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from typing import Any

import torch

from bench.gpu.rig import Rig
from bench.gpu.stopwatch import device_seconds

PACKAGES = ("torch", "triton", "transformers", "flashinfer-python")
NUM_NODES = 256
NUM_REPLAYS = 100


def run(rig: Rig) -> None:
    versions = {name: _version(name) for name in PACKAGES}
    rig.tell({"python": platform.python_version(), **versions, **_hardware(rig)})
    rig.tell(rig.ceilings._asdict())
    one = torch.zeros(1, device=rig.torch_device)

    def nodes(count: int) -> None:
        for _ in range(count):
            one.add_(1)

    for count in (1, NUM_NODES):
        replay = rig.device.capture(lambda count=count: nodes(count))  # type: ignore[misc]
        facts = {"graph_nodes": count, "device_us": device_seconds(replay) * 1e6}
        rig.tell(facts | {"host_us": _host_seconds(rig, replay) * 1e6})


def _host_seconds(rig: Rig, replay: Any) -> float:
    """Of one launch, while the device is behind."""
    rig.device.mark().wait()
    begin = time.perf_counter()
    for _ in range(NUM_REPLAYS):
        rig.device.enqueue(replay)
    seconds = (time.perf_counter() - begin) / NUM_REPLAYS
    rig.device.mark().wait()
    return seconds


def _hardware(rig: Rig) -> dict[str, Any]:
    if not rig.is_gpu:
        return {"gpu": "none: a try on a CPU"}
    properties = torch.cuda.get_device_properties(rig.torch_device)
    return {
        "gpu": properties.name,
        "memory_gib": properties.total_memory / 2**30,
        "processors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str:
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return done.stdout.split("\n")[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
