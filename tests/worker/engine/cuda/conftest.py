"""Triton kernels run by Triton's interpreter, and once more on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from shared.cli.garbage import importing_much
from worker.engine.cuda.cuda_device import CudaDevice

HAS_GPU = torch.cuda.is_available()
NO_GPU = "no NVIDIA GPU"

if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


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
