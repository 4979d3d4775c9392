"""The machine: what is installed, processor, memory, GPU, limits, ports, and the disk."""

from __future__ import annotations

import contextlib
import csv
import os
import platform
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from deploy.local.data_folder import MIN_FREE_BYTES
from deploy.local.http_probe import http_url
from deploy.local.nats_binary import find_nats_server
from deploy.local.ports import check_port
from jetflock.doctor.finding import Finding, fail, ok, warn
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.machine.cuda_toolkit import find_nvcc, pip_nvcc
from shared.machine.gpu_driver import TorchBuild, why_not_cuda
from shared.machine.installation import install_command
from shared.storage.byte_budget import ByteBudget, in_units
from worker.engine_link.engine_config import KV_DISK_FREE_BYTES

_PACKAGES = {  # extra -> what it brings
    "frontend": ("starlette", "uvicorn", "tokenizers", "llguidance", "jinja2"),
    "worker": ("torch", "transformers", "safetensors", "huggingface-hub"),
}
_COMPILERS = ("c++", "g++", "clang++")
_AVX512_BF16 = frozenset({"avx512_bf16", "avx512vbmi", "avx512_vnni"})
_KERNEL_SETS = {  # of kernel_set.py, by Linux's words
    "amx-bf16": _AVX512_BF16 | {"amx_tile", "amx_bf16", "amx_int8"},
    "avx512-bf16": _AVX512_BF16,
    "avx512": frozenset(
        {*("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"), "avx512vbmi", "avx512_vnni"}
    ),
    "avx2": frozenset({"avx2", "fma", "bmi2", "f16c"}),
}
_MIN_MEMORY_BYTES = 1 << 30
_MIN_FILES = 4096
_NUM_WRITES = 20
_BLOCK = b"\0" * 4096
_SLOW_S = 0.02
_LEAST_CAPABILITY = 8.0  # bfloat16
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_GPU_FACTS = "index,name,driver_version,compute_cap,memory.free,memory.total"
_SYSTEM_S = 10.0


def machine_findings(host: str, port: int) -> Iterator[Finding]:
    """Quick, and without a network but this machine's own."""
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from _packages()
    yield _nats_server()
    yield from _processor()
    yield _memory()
    yield from gpu_findings()
    yield _open_files()
    yield _port(host, port)


def _packages() -> Iterator[Finding]:
    for extra, names in _PACKAGES.items():
        found, missing = [], []
        for name in names:
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        area = f"packages of a {extra}"
        if missing:
            remedy = install_command(extra)
            yield warn(area, f"{', '.join(missing)} missing: none can run here", remedy)
        else:
            yield ok(area, ", ".join(found))


def _nats_server() -> Finding:
    try:
        binary = find_nats_server()
    except ConfigError as exc:
        return warn("nats-server", "none can be run", f"{exc}")
    told = "".join(run_lines([binary.path, "--version"])[:1])
    text = f"{told}, {binary.path} ({binary.origin})"
    if binary.remark:
        return warn(
            "nats-server",
            f"{binary.remark}; {text}",
            "name another by --nats-server, or put one on PATH",
        )
    return ok("nats-server", text)


def _processor() -> Iterator[Finding]:
    num_cores, flags = len(os.sched_getaffinity(0)), _processor_flags()
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    yield ok("processor", f"{num_cores} cores, {' '.join(known) or 'no AVX2'}")
    compiler = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), None)
    kernel_set = next((name for name, needs in _KERNEL_SETS.items() if needs <= flags), "")
    if not kernel_set:
        yield ok("kernels", "no AVX2: models run in float32, by torch")
    elif compiler is None:
        yield warn(
            "kernels",
            f"{kernel_set}, but no C++ compiler: torch computes what our C++ would, slower",
            "install one (Debian: apt install g++), or use an image of ours, which needs none",
        )
    else:
        path = shutil.which(compiler) or compiler
        yield ok("kernels", f"{kernel_set}: large models in our C++, compiled by {path}")


def _processor_flags() -> set[str]:
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def _memory() -> Finding:
    from shared.machine.host_limits import available_memory_bytes

    num_bytes = available_memory_bytes()
    text = f"{num_bytes / (1 << 30):.1f} GiB available"
    if num_bytes < _MIN_MEMORY_BYTES:
        return warn("memory", text, "end other programs, or raise the container's limit")
    return ok("memory", text)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "without limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    text = f"{soft} now, {most}; a stream takes one"
    if hard != resource.RLIM_INFINITY and hard < _MIN_FILES:
        remedy = f"raise the hard limit to {_MIN_FILES} or more (ulimit -Hn, LimitNOFILE=)"
        return warn("open files", text, remedy)
    return ok("open files", text)


def _port(host: str, port: int) -> Finding:
    try:
        check_port(host, port, "--port")
    except ConfigError as exc:
        if told := _answered_version(host, port):
            return ok("port", f"jetflock {told} answers at {host}:{port}")
        return fail("port", f"{host}:{port} is taken", str(exc).partition("; ")[2])
    return ok("port", f"{host}:{port} is free")


def _answered_version(host: str, port: int) -> str | None:
    """The version of the jetflock that listens there."""
    try:
        answer = httpx.get(f"{http_url(host, port)}/version", timeout=3.0, trust_env=False)
        return str(answer.json()["version"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def disk_findings(folder: Path, config: ClusterConfig) -> Iterator[Finding]:
    """`folder` need not be there yet."""
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    if not os.access(place, os.W_OK | os.X_OK):
        yield fail("disk", f"{folder} cannot be written", "change its owner, or name a --data-dir")
        return
    yield _room(place, folder, config)
    yield _speed(place)


def kv_disk_finding(folder: Path) -> Finding:
    """Looks at the folder of keys and values, which need not be there yet."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    remedy = "chmod 700 it as the user of the workers, or name another by --kv-disk-dir"
    if not os.access(place, os.W_OK | os.X_OK):
        return fail("kv disk", f"{folder} cannot be written", remedy)
    status = place.stat()
    if place == folder and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
        return fail("kv disk", f"{folder} is not this user's alone (mode 700)", remedy)
    num_bytes = 0
    for page in folder.glob("*.page"):
        with contextlib.suppress(FileNotFoundError):  # a worker makes room
            num_bytes += page.stat().st_size
    free = shutil.disk_usage(place).free
    text = f"{in_units(num_bytes)} in {folder}, {in_units(free)} free"
    if free < KV_DISK_FREE_BYTES:
        return warn("kv disk", f"{text}: nothing is written below 1 GiB", "free some")
    return ok("kv disk", text)


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


def gpu_findings() -> Iterator[Finding]:
    """The driver, each GPU, and what a worker needs beside them. Quick: imports no torch."""
    driver = read_text(_DRIVER_FILE).partition("\n")[0]
    if shutil.which("nvidia-smi") is None:
        if driver:
            yield warn("GPU", f"{driver}, but no nvidia-smi", "install the driver's tools")
        else:
            yield ok("GPU", "there is none; models run on the processor")
        return
    lines = run_lines(["nvidia-smi", f"--query-gpu={_GPU_FACTS}", "--format=csv,noheader,nounits"])
    gpus = [[value.strip() for value in row] for row in csv.reader(lines)]
    if not gpus or any(len(gpu) != _GPU_FACTS.count(",") + 1 for gpu in gpus):
        yield warn("GPU", "nvidia-smi finds none", "check the driver: nvidia-smi")
        return
    for gpu in gpus:
        yield _gpu(*gpu)
    yield _gpu_torch(gpus[0][2])
    yield _gpu_kernels()


def _gpu(idx: str, name: str, driver: str, capability: str, free: str, total: str) -> Finding:
    area = f"GPU {idx}"
    memory = f"{_gib(free)} of {_gib(total)} GiB free"
    text = f"{name}, driver {driver}, compute capability {capability}, {memory}"
    if _number(capability) < _LEAST_CAPABILITY:
        remedy = "--device cpu, or a GPU of compute capability 8.0 (Ampere) or later"
        return warn(area, f"{text}: too old for bfloat16", remedy)
    return ok(area, text)


def _gpu_torch(driver: str) -> Finding:
    """Looks at its files: importing it would take seconds."""
    found = TorchBuild.installed()
    if found is None:
        return warn("GPU: torch", "not installed", install_command("cuda"))
    if (obstacle := why_not_cuda(driver, found)) is not None:
        return fail("GPU: torch", obstacle.what, obstacle.remedy)
    return ok("GPU: torch", f"{found.version} for CUDA {found.cuda}; --device auto uses the GPU")


def _gpu_kernels() -> Finding:
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


def run_lines(argv: list[str]) -> list[str]:
    """The lines of its output; none when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            argv, capture_output=True, text=True, check=True, timeout=_SYSTEM_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def read_text(path: Path) -> str:
    """Empty when it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
