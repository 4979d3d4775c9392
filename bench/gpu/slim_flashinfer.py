"""Copies the part of flashinfer's wheel that compiles our attention: `WHEEL FOLDER`.

The whole has 300 MB and more unpacked, most of it kernels that are not ours. What is kept needs
tvm_ffi beside it, and a CUDA toolkit to compile with.
"""

from __future__ import annotations

import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

KEPT_DATA = (
    "include/*",
    "cccl/*",
    "cutlass/include/*",
    "cutlass/tools/util/include/*",
    "spdlog/include/*",
    "csrc/xqa/*",
)
KEPT_SOURCES = ("batch_decode*", "batch_prefill*", "*xqa*", "*.h", "*.cuh", "*.inc")  # of csrc
DROPPED_CODE = ("experimental/b12x/*", "experimental/cake_vsa_sm90_cute/*", "moe_ep/*")


def is_kept(name: str) -> bool:
    """Of a path in the wheel."""
    package, _, path = name.partition("/")
    if package != "flashinfer":
        return package.endswith(".dist-info")
    if not path.startswith("data/"):
        return path.endswith(".py") and not any(fnmatch(path, each) for each in DROPPED_CODE)
    path = path.removeprefix("data/")
    folder, _, source = path.partition("/")
    if folder == "csrc" and "/" not in source:
        return any(fnmatch(source, each) for each in KEPT_SOURCES)
    return any(fnmatch(path, each) for each in KEPT_DATA)


def main(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if is_kept(name):
                archive.extract(name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
