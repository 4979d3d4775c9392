"""NVIDIA GPUs: the driver, each of them, and what a worker needs beside them. Imports no torch."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jetflock.doctor.finding import Finding, fail, ok, warn
from jetflock.doctor.system import read_text, run_lines
from shared.cuda_toolkit import find_nvcc, pip_nvcc
from shared.gpu_driver import TorchBuild, why_not_cuda
from shared.installation import install_command

_LEAST_CAPABILITY = 8.0  # bfloat16
_DRIVER = Path("/proc/driver/nvidia/version")
_FACTS = "index,name,driver_version,compute_cap,memory.free,memory.total"


def gpu_findings() -> Iterator[Finding]:
    """Quick."""
    driver = read_text(_DRIVER).partition("\n")[0]
    if shutil.which("nvidia-smi") is None:
        if driver:
            yield warn("GPU", f"{driver}, but no nvidia-smi", "install the driver's tools")
        else:
            yield ok("GPU", "there is none; models run on the processor")
        return
    lines = run_lines(["nvidia-smi", f"--query-gpu={_FACTS}", "--format=csv,noheader,nounits"])
    gpus = [[value.strip() for value in row] for row in csv.reader(lines)]
    if not gpus or any(len(gpu) != _FACTS.count(",") + 1 for gpu in gpus):
        yield warn("GPU", "nvidia-smi finds none", "check the driver: nvidia-smi")
        return
    for gpu in gpus:
        yield _gpu(*gpu)
    yield _torch(gpus[0][2])
    yield _kernels()


def _gpu(idx: str, name: str, driver: str, capability: str, free: str, total: str) -> Finding:
    area = f"GPU {idx}"
    memory = f"{_gib(free)} of {_gib(total)} GiB free"
    text = f"{name}, driver {driver}, compute capability {capability}, {memory}"
    if _number(capability) < _LEAST_CAPABILITY:
        remedy = "--device cpu, or a GPU of compute capability 8.0 (Ampere) or later"
        return warn(area, f"{text}: too old for bfloat16", remedy)
    return ok(area, text)


def _torch(driver: str) -> Finding:
    """Looks at its files: importing it would take seconds."""
    found = TorchBuild.installed()
    if found is None:
        return warn("GPU: torch", "not installed", install_command("cuda"))
    if (obstacle := why_not_cuda(driver, found)) is not None:
        return fail("GPU: torch", obstacle.what, obstacle.remedy)
    return ok("GPU: torch", f"{found.version} for CUDA {found.cuda}; --device auto uses the GPU")


def _kernels() -> Finding:
    """Triton builds a little C for each kernel that it launches, flashinfer much CUDA, once."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    triton, flashinfer = _version("triton"), _version("flashinfer-python")
    if triton is None:
        return warn("GPU: kernels", "triton is not installed", install_command("cuda"))
    if compiler is None:
        return warn(
            "GPU: kernels",
            f"triton {triton}, but no C compiler: it cannot launch its kernels",
            "install one (Debian: apt install gcc libc6-dev), or use an image of ours",
        )
    text = f"triton {triton} with {compiler}; "
    if flashinfer is None:
        return ok("GPU: kernels", f"{text}without flashinfer Triton's kernels attend")
    nvcc = find_nvcc(os.environ) or pip_nvcc()
    built = f"built by {nvcc}" if nvcc else "no nvcc: what is not built yet, Triton's kernels do"
    return ok("GPU: kernels", f"{text}flashinfer {flashinfer}, {built}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gib(mebibytes: str) -> str:
    return f"{_number(mebibytes) / 1024:.1f}"


def _number(text: str) -> float:
    """0 for what a driver does not tell: `[N/A]`."""
    try:
        return float(text)
    except ValueError:
        return 0.0
