"""The CUDA compiler of flashinfer's kernels: the machine's toolkit, or pip's (`jetflock[cuda]`)."""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

HOME_VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # flashinfer reads them in this order
MACHINE_TOOLKIT = Path("/usr/local/cuda")
_DRIVER_PLACES = ("/usr/local/nvidia/lib*", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def find_nvcc(environ: Mapping[str, str], machine: Path = MACHINE_TOOLKIT) -> Path | None:
    """That flashinfer would call."""
    for variable in HOME_VARIABLES:
        if home := environ.get(variable):
            return _existing(Path(home, "bin", "nvcc"))
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    return Path(on_path) if on_path else _existing(machine / "bin" / "nvcc")


def provide_nvcc(
    environ: MutableMapping[str, str], cache: Path, machine: Path = MACHINE_TOOLKIT
) -> Path | None:
    """The compiler that flashinfer calls from now on; None where there is none.

    Where the machine has none, CUDA_HOME becomes a folder of links in `cache` to pip's, which lacks
    the names that a linker looks for. It keeps its path: flashinfer would compile all anew for
    another one.
    """
    if (found := find_nvcc(environ, machine)) is not None:
        return found
    if (nvcc := pip_nvcc()) is None:
        return None
    root = nvcc.parents[1]
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    home = cache / f"cuda-{digest}"
    if not (home / "bin" / "nvcc").exists():
        _link_home(home, root)
    environ[HOME_VARIABLES[0]] = str(home)
    return home / "bin" / "nvcc"


def pip_toolkit() -> Path | None:
    """The folder of CUDA 13 that torch and `cuda-toolkit` of PyPI share."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    roots = [Path(folder) / "cu13" for folder in folders]
    return next((root for root in roots if (root / "include").is_dir()), None)


def pip_nvcc() -> Path | None:
    """That of `cuda-toolkit[nvcc]`."""
    root = pip_toolkit()
    return None if root is None else _existing(root / "bin" / "nvcc")


def driver_library() -> Path | None:
    """The machine's libcuda.so.1."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if Path(ldconfig).exists():
        listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)  # noqa: S603
        for line in listed.stdout.splitlines():
            if line.split()[:1] == ["libcuda.so.1"]:
                return Path(line.rsplit(" => ", 1)[-1])
    found = [path for place in _DRIVER_PLACES for path in glob.glob(f"{place}/libcuda.so.1")]
    return Path(found[0]) if found else None


def link_libraries(folder: Path, root: Path | None) -> None:
    """The names that a linker looks for, of what has a number behind its own."""
    for name, target in (
        ("libcudart.so", None if root is None else root / "lib" / "libcudart.so.13"),
        ("libcuda.so", driver_library()),
    ):
        if target is not None and target.exists():
            (folder / name).symlink_to(target)


def _link_home(home: Path, root: Path) -> None:
    """Whoever makes it at the same time makes the same: the first rename wins."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        made = Path(folder, home.name)
        libraries = made / "lib64"
        libraries.mkdir(parents=True)
        for name in ("bin", "include", "nvvm"):
            (made / name).symlink_to(root / name)
        link_libraries(libraries, root)
        if home.is_dir():  # of packages that have gone since
            home.rename(Path(folder, "old"))
        try:
            os.rename(made, home)
        except OSError:
            if not (home / "bin" / "nvcc").exists():
                raise


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
