"""Triton kernels run on a GPU where there is one, and by Triton's interpreter elsewhere."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


@pytest.fixture
def device() -> torch.device:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
