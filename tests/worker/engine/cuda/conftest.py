"""Triton kernels run by Triton's interpreter, and once more on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace

import pytest
import torch

from shared.cli.garbage import importing_much
from worker.engine.cuda.cuda_device import CudaDevice

HAS_GPU = torch.cuda.is_available()
NO_GPU = "no NVIDIA GPU"


def patch_language_once() -> None:
    """Triton's interpreter looks through its whole language for what to replace whenever a kernel
    calls a function, a third of its time: what is replaced once stays so.
    """
    from triton import language
    from triton.runtime import interpreter

    patch: Callable[[FunctionType], object] = interpreter._patch_lang
    patched: set[tuple[bool, bool]] = set()
    scope = SimpleNamespace(restore=lambda: None)

    def patch_once(function: FunctionType) -> SimpleNamespace:
        modules = [each for each in function.__globals__.values() if isinstance(each, ModuleType)]
        sees = language in modules, language.core in modules
        if sees not in patched:
            patch(function)
            patched.add(sees)
        return scope

    interpreter._patch_lang = patch_once


if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    if importlib.util.find_spec("triton") is not None:
        patch_language_once()


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Skips where Triton's interpreter does not run."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton")
    if HAS_GPU:
        pytest.skip("there is a GPU: Triton's interpreter is not used")
    with importing_much():  # it parses kernels, which Python 3.11 cannot where garbage is collected
        yield


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "interpreter":
        request.getfixturevalue("interpreter")
        return torch.device("cpu")
    if not HAS_GPU:
        pytest.skip(NO_GPU)
    return torch.device("cuda")


@pytest.fixture
def gpu() -> CudaDevice:
    """A real one. Whatever waits for it within a step fails."""
    if not HAS_GPU:
        pytest.skip(NO_GPU)
    return CudaDevice(check_syncs=True)
