"""What compiling for a GPU needs of this machine, and where its parts lie."""

from __future__ import annotations

import glob
import importlib.util
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_DRIVER_PLACES = ("/usr/local/nvidia/lib*", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def can_build() -> bool:
    """Whether flashinfer, a CUDA compiler, and a GPU's driver are here."""
    has_compiler = shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").exists()
    has_flashinfer = importlib.util.find_spec("flashinfer") is not None
    return has_compiler and has_flashinfer and _driver() is not None


def build_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make up for what a toolkit may lack and pip's CUDA packages have.

    Headers as curand_kernel.h, and names that the linker looks for, which are made in `folder`.
    """
    root = _pip_cuda()
    flags: dict[str, list[str]] = {"FLASHINFER_EXTRA_CUDAFLAGS": [], "FLASHINFER_EXTRA_LDFLAGS": []}
    if root is not None:
        flags["FLASHINFER_EXTRA_CUDAFLAGS"].append(f"-I{root / 'include'}")
        _link(folder / "libcudart.so", root / "lib" / "libcudart.so.13")
    if (driver := _driver()) is not None:
        _link(folder / "libcuda.so", driver)
    if any(folder.iterdir()):
        flags["FLASHINFER_EXTRA_LDFLAGS"].append(f"-L{folder}")
    return {
        name: " ".join([environ.get(name, ""), shlex.join(words)]).strip()
        for name, words in flags.items()
        if words
    }


def _pip_cuda() -> Path | None:
    """Of CUDA 13, as torch brings it."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    roots = [Path(folder) / "cu13" for folder in folders]
    return next((root for root in roots if (root / "include").is_dir()), None)


def _driver() -> Path | None:
    """Of the machine: libcuda.so.1."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if Path(ldconfig).exists():
        listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
        for line in listed.stdout.splitlines():
            if line.split()[:1] == ["libcuda.so.1"]:
                return Path(line.rsplit(" => ", 1)[-1])
    found = [path for place in _DRIVER_PLACES for path in glob.glob(f"{place}/libcuda.so.1")]
    return Path(found[0]) if found else None


def _link(name: Path, target: Path) -> None:
    if target.exists():
        name.symlink_to(target)
