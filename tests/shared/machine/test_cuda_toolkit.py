"""Which nvcc compiles flashinfer's kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.machine import cuda_toolkit
from shared.machine.cuda_toolkit import find_nvcc, provide_nvcc


def make_toolkit(root: Path) -> Path:
    for name in ("bin", "include", "nvvm", "lib"):
        (root / name).mkdir(parents=True)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    (root / "lib" / "libcudart.so.13").touch()
    return nvcc


@pytest.fixture
def pip_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of `jetflock[cuda]`, and a machine with a driver."""
    root = tmp_path / "site" / "nvidia" / "cu13"
    make_toolkit(root)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    driver = tmp_path / "libcuda.so.1"
    driver.touch()
    monkeypatch.setattr(cuda_toolkit, "driver_library", lambda: driver)
    return root


def test_the_machine_s_toolkit_goes_before_pip_s(tmp_path: Path, pip_root: Path) -> None:
    machine = tmp_path / "machine"
    nvcc = make_toolkit(machine)
    for environ in ({"CUDA_HOME": str(machine)}, {"CUDA_PATH": str(machine)}):
        assert provide_nvcc(environ, tmp_path / "cache", tmp_path / "none") == nvcc
    on_path = {"PATH": str(machine / "bin")}
    assert provide_nvcc(on_path, tmp_path / "cache", tmp_path / "none") == nvcc
    assert provide_nvcc({"PATH": ""}, tmp_path / "cache", machine) == nvcc
    assert "CUDA_HOME" not in on_path


def test_without_one_pip_s_gets_the_names_that_a_linker_looks_for(
    tmp_path: Path, pip_root: Path
) -> None:
    environ = {"PATH": ""}
    nvcc = provide_nvcc(environ, tmp_path / "cache", tmp_path / "none")
    home = Path(environ["CUDA_HOME"])
    assert nvcc == home / "bin" / "nvcc"
    assert nvcc.resolve() == pip_root / "bin" / "nvcc"
    assert (home / "include").resolve() == pip_root / "include"
    assert (home / "lib64/libcudart.so").resolve() == pip_root / "lib/libcudart.so.13"
    assert (home / "lib64/libcuda.so").resolve() == tmp_path / "libcuda.so.1"
    assert find_nvcc(environ) == nvcc


def test_its_place_stays_so_that_nothing_is_compiled_anew(tmp_path: Path, pip_root: Path) -> None:
    homes = []
    for _ in range(2):
        environ = {"PATH": ""}
        provide_nvcc(environ, tmp_path / "cache", tmp_path / "none")
        homes.append(environ["CUDA_HOME"])
    assert homes[0] == homes[1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [Path(homes[0]).name]


def test_a_home_of_packages_that_have_gone_is_made_anew(tmp_path: Path, pip_root: Path) -> None:
    environ = {"PATH": ""}
    provide_nvcc(environ, tmp_path / "cache", tmp_path / "none")
    shutil.rmtree(environ["CUDA_HOME"])
    (Path(environ["CUDA_HOME"]) / "lib64").mkdir(parents=True)
    again = provide_nvcc({"PATH": ""}, tmp_path / "cache", tmp_path / "none")
    assert again is not None
    assert again.exists()


def test_without_packages_there_is_none(tmp_path: Path) -> None:
    environ = {"PATH": ""}
    assert provide_nvcc(environ, tmp_path / "cache", tmp_path / "none") is None
    assert environ == {"PATH": ""}
