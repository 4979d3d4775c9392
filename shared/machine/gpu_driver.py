"""The NVIDIA driver that this process sees, and whether the installed torch can use it.

Imports no torch, for commands that must not.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, Self

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
UNKNOWN_DRIVER = ""
# By CUDA's major version the first driver branch that runs it, and an index of PyTorch's wheels for
# it (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_LEAST_DRIVER = {12: 525, 13: 580}
_WHEEL_INDEX = {12: "cu126", 13: "cu130"}
# What a process finds where it was given a GPU (every container shows the version of the module).
_NODES = ("dev/nvidiactl", "usr/lib/wsl/lib/libcuda.so.1")
_VERSION_FILE = "proc/driver/nvidia/version"


class TorchBuild(NamedTuple):
    """What is installed. `cuda`: its version, like 13.0; None for a build without."""

    version: str
    cuda: str | None

    @classmethod
    def installed(cls) -> Self | None:
        """None where there is no torch, or none that says what it was built for."""
        try:
            found = version("torch")
        except PackageNotFoundError:
            return None
        spec = importlib.util.find_spec("torch")  # it runs nothing of torch
        if spec is None or spec.origin is None:
            return None
        try:
            text = Path(spec.origin).with_name("version.py").read_text()
        except OSError:
            return None
        told = re.search(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([\d.]+)['\"])", text, re.MULTILINE)
        return None if told is None else cls(found, told[1])


class CudaObstacle(NamedTuple):
    """Why torch and the driver do not fit, with both versions, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def visible_driver(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Its version, like 570.86.15; UNKNOWN_DRIVER where it does not tell (WSL). None where this
    process has no NVIDIA GPU: there is none, its container was given none, or they are hidden from
    it by CUDA_VISIBLE_DEVICES.
    """
    chosen = environ.get(VISIBLE_DEVICES)
    if chosen is not None and chosen.strip() in ("", "-1"):
        return None
    if not any((root / node).exists() for node in _NODES):
        return None
    try:
        text = (root / _VERSION_FILE).read_text()
    except OSError:
        return UNKNOWN_DRIVER
    told = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return UNKNOWN_DRIVER if told is None else told[1]


def why_not_cuda(driver: str, build: TorchBuild) -> CudaObstacle | None:
    """None when they fit, as far as is known."""
    branch = int(driver.partition(".")[0]) if driver else None
    name = f"NVIDIA driver {driver}" if driver else "an NVIDIA driver"
    remedies = [_other_torch(branch)]
    if build.cuda is None:
        what = (
            f"this machine has {name}, and torch {build.version} is built for the processor alone"
        )
    else:
        least = _LEAST_DRIVER.get(int(build.cuda.partition(".")[0]))
        if branch is None or least is None or branch >= least:
            return None
        what = f"{name} is too old for torch {build.version}, which is built for CUDA {build.cuda}"
        remedies = [
            f"update the driver to {least} or newer",
            *(remedies if _runs_any(branch) else ()),
        ]
    remedy = f"{', '.join(remedies)}, or run on the processor with --device cpu"
    return CudaObstacle(what, remedy)


def _runs_any(branch: int) -> bool:
    return branch >= min(_LEAST_DRIVER.values())


def _other_torch(branch: int | None) -> str:
    """Which one suits this branch of the driver, or the first one that any would suit."""
    fitting = [cuda for cuda, least in _LEAST_DRIVER.items() if branch is None or branch >= least]
    cuda = max(fitting, default=min(_LEAST_DRIVER))
    torch = f"install a torch for CUDA {cuda} (PyTorch's wheel index {_WHEEL_INDEX[cuda]})"
    return torch if fitting else f"update the driver to {_LEAST_DRIVER[cuda]} or newer and {torch}"
