"""The kernels go through the whole compiler: the interpreter, which knows no types, asks less."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install triton")
@pytest.mark.nightly
@pytest.mark.parametrize("capability", ["8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"])
def test_the_kernels_compile_and_have_room(capability: str, tmp_path: Path) -> None:
    """In a process of its own: here Triton may have been imported to interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.engine.cuda.compile_kernels", capability],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "decode 32 8 128" in done.stdout
