"""A GPU that is there and cannot be used is an error, and nothing that runs on the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worker.engine.cuda.cuda_device import gpu_obstacle, has_gpu

pytestmark = pytest.mark.torch


def test_without_a_gpu_there_is_no_obstacle(tmp_path: Path) -> None:
    assert gpu_obstacle({}, tmp_path) is None


@pytest.mark.skipif(has_gpu(), reason="torch can use the GPU here")
def test_a_gpu_that_torch_cannot_use_is_an_obstacle(tmp_path: Path) -> None:
    node = tmp_path / "dev/nvidiactl"
    node.parent.mkdir()
    node.touch()
    obstacle = gpu_obstacle({}, tmp_path)
    assert obstacle is not None
    assert torch.__version__ in obstacle
    assert "--device cpu" in obstacle
    assert gpu_obstacle({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) is None
