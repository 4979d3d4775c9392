"""What compiling for a GPU needs of this machine, and where its parts lie."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from shared.machine.cuda_toolkit import (
    driver_library,
    find_nvcc,
    link_libraries,
    pip_nvcc,
    pip_toolkit,
)


def can_build() -> bool:
    """Whether flashinfer, a CUDA compiler, and a GPU's driver are here."""
    has_compiler = (find_nvcc(os.environ) or pip_nvcc()) is not None
    has_flashinfer = importlib.util.find_spec("flashinfer") is not None
    return has_compiler and has_flashinfer and driver_library() is not None


def build_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make up for what a toolkit may lack and pip's CUDA packages have.

    Headers as curand_kernel.h, and names that the linker looks for, which are made in `folder`.
    """
    root = pip_toolkit()
    flags: dict[str, list[str]] = {"FLASHINFER_EXTRA_CUDAFLAGS": [], "FLASHINFER_EXTRA_LDFLAGS": []}
    if root is not None:
        flags["FLASHINFER_EXTRA_CUDAFLAGS"].append(f"-I{root / 'include'}")
    link_libraries(folder, root)
    if any(folder.iterdir()):
        flags["FLASHINFER_EXTRA_LDFLAGS"].append(f"-L{folder}")
    return {
        name: " ".join([environ.get(name, ""), shlex.join(words)]).strip()
        for name, words in flags.items()
        if words
    }
