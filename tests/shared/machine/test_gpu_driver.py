"""Which NVIDIA driver a process sees, and what to do where the installed torch cannot use it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.environment import driver_branch
from shared.machine.gpu_driver import UNKNOWN_DRIVER, TorchBuild, visible_driver, why_not_cuda

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 23:54:41 UTC 2025\n"
    "GCC version:  gcc version 12.3.0\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder)\n"
)
PYPI = TorchBuild("2.13.0", "13.0")
CUDA_12 = TorchBuild("2.13.0+cu126", "12.6")
FOR_CPU = TorchBuild("2.13.0+cpu", None)


def make_machine(root: Path, version_text: str = PROPRIETARY, *, has_node: bool = True) -> Path:
    """Its files, as the driver shows them."""
    file = root / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(version_text)
    if has_node:
        (root / "dev").mkdir()
        (root / "dev/nvidiactl").touch()
    return root


@pytest.mark.parametrize(
    ("text", "expected"),
    [(PROPRIETARY, "570.86.15"), (OPEN, "580.65.06"), ("of a future form\n", UNKNOWN_DRIVER)],
)
def test_the_driver_tells_its_version(tmp_path: Path, text: str, expected: str) -> None:
    root = make_machine(tmp_path, text)
    assert visible_driver({}, root) == expected
    file = root / "proc/driver/nvidia/version"
    assert driver_branch(file) == (int(expected[:3]) if expected else None)


def test_without_a_gpu_of_its_own_a_process_sees_no_driver(tmp_path: Path) -> None:
    assert visible_driver({}, tmp_path / "nothing") is None
    root = make_machine(tmp_path / "container", has_node=False)
    assert visible_driver({}, root) is None, "the module's version stands in every container"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_gpus_that_are_hidden_count_as_none(tmp_path: Path, hidden: str) -> None:
    root = make_machine(tmp_path)
    assert visible_driver({"CUDA_VISIBLE_DEVICES": hidden}, root) is None
    assert visible_driver({"CUDA_VISIBLE_DEVICES": "0"}, root) == "570.86.15"


def test_windows_subsystem_has_no_version_file(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/wsl/lib/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert visible_driver({}, tmp_path) == UNKNOWN_DRIVER


@pytest.mark.parametrize(
    ("driver", "torch"),
    [("580.65.06", PYPI), ("610.1", PYPI), ("525.60.13", CUDA_12), ("580.1", CUDA_12), ("", PYPI)],
)
def test_what_fits_is_no_obstacle(driver: str, torch: TorchBuild) -> None:
    assert why_not_cuda(driver, torch) is None


@pytest.mark.parametrize(
    ("driver", "torch", "expected"),
    [
        (
            "570.86.15",
            PYPI,
            "NVIDIA driver 570.86.15 is too old for torch 2.13.0, which is built for CUDA 13.0: "
            "update the driver to 580 or newer, install a torch for CUDA 12 (PyTorch's wheel index "
            "cu126), or run on the processor with --device cpu",
        ),
        (
            "470.57.02",
            CUDA_12,
            "NVIDIA driver 470.57.02 is too old for torch 2.13.0+cu126, which is built for CUDA "
            "12.6: update the driver to 525 or newer, or run on the processor with --device cpu",
        ),
        (
            "580.65.06",
            FOR_CPU,
            "this machine has NVIDIA driver 580.65.06, and torch 2.13.0+cpu is built for the "
            "processor alone: install a torch for CUDA 13 (PyTorch's wheel index cu130), or run on "
            "the processor with --device cpu",
        ),
        (
            UNKNOWN_DRIVER,
            FOR_CPU,
            "this machine has an NVIDIA driver, and torch 2.13.0+cpu is built for the processor "
            "alone: install a torch for CUDA 13 (PyTorch's wheel index cu130), or run on the "
            "processor with --device cpu",
        ),
        (
            "470.57.02",
            FOR_CPU,
            "this machine has NVIDIA driver 470.57.02, and torch 2.13.0+cpu is built for the "
            "processor alone: update the driver to 525 or newer and install a torch for CUDA 12 "
            "(PyTorch's wheel index cu126), or run on the processor with --device cpu",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_both_versions_and_what_to_do(
    driver: str, torch: TorchBuild, expected: str
) -> None:
    assert str(why_not_cuda(driver, torch)) == expected


def test_the_installed_torch_is_known_without_importing_it() -> None:
    build = TorchBuild.installed()
    assert build is not None
    assert build.version == version("torch")
    assert (build.cuda is None) == ("+cpu" in build.version)
