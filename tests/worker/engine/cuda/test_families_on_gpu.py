"""What transformers computes, on a real GPU: `make test-gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_llava import save_tiny_llava
from tests.worker.engine.cuda.conftest import HAS_GPU, NO_GPU
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.cuda.test_gpu_families import (
    SMALL,
    TOWERS,
    encoder_scores,
    image_requests,
    requests,
    save_family,
)
from tests.worker.engine.encoder.test_encoder_scores import save_tiny_encoder
from tests.worker.engine.models.vision.test_towers import STORIES, Seeing
from worker.engine.cuda.cuda_device import CudaDevice

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason=NO_GPU)]

KERNELS: dict[str, Any] = SMALL | {"attention_backend": "triton", "overlap": True}
# transformers makes tensors of an image's sizes there, and waits until they have come.
WAITING_TOWERS = ("mistral3", "llava_next", "llava_onevision")
HAS_GROUPED_PRODUCT = HAS_GPU and torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.parametrize(
    "family", ["gemma2", "gemma3", "gpt2", "phi", "phi3 longrope", "olmo2", "deepseek_v2"]
)
def test_a_family_is_captured(tmp_path: Path, gpu: CudaDevice, family: str) -> None:
    path = save_family(tmp_path, family)
    rig, adds = GpuRig(path, gpu, **KERNELS), requests((60, 1, 17), max_tokens=12)
    assert rig.loop._ready.remark == ""
    assert rig.run(*adds) == GpuRig(path, None, **SMALL).run(*adds)


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "phimoe"])
def test_a_family_that_waits_runs_without_graphs(tmp_path: Path, family: str) -> None:
    """Experts in float32, and a rope on the host: nothing of the broken capture stays."""
    gpu, path = CudaDevice(), save_family(tmp_path, family)
    rig, adds = GpuRig(path, gpu, **KERNELS), requests((60, 1, 17), max_tokens=12)
    assert "runs without CUDA graphs" in rig.loop._ready.remark
    assert rig.run(*adds) == GpuRig(path, None, **SMALL).run(*adds)
    captured = GpuRig(save_family(tmp_path / "olmo2", "olmo2"), CudaDevice(), **KERNELS)
    assert captured.loop._ready.remark == ""


@pytest.mark.skipif(not HAS_GROUPED_PRODUCT, reason="no GPU of compute capability 9.0")
@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "glm4_moe"])
def test_experts_in_bfloat16_are_captured(tmp_path: Path, gpu: CudaDevice, family: str) -> None:
    path = save_family(tmp_path, family)
    rig = GpuRig(path, gpu, **KERNELS | {"dtype": "bfloat16"})
    assert rig.loop._ready.remark == ""
    tokens = rig.run(*requests((60, 1, 17), max_tokens=12))
    assert [len(each) for each in tokens.values()] == [12] * 3


def test_images_are_seen_as_on_the_cpu(tmp_path: Path, gpu: CudaDevice) -> None:
    path = save_tiny_llava(tmp_path)
    adds = image_requests(max_tokens=8)
    assert GpuRig(path, gpu, **KERNELS).run(*adds) == GpuRig(path, None, **SMALL).run(*adds)


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_sees_as_on_the_cpu(tmp_path: Path, name: str) -> None:
    gpu, seeing = CudaDevice(check_syncs=name not in WAITING_TOWERS), Seeing(tmp_path, name)
    adds = [seeing.add(run_id, STORIES[run_id]) for run_id in (1, 2, 3)]
    ours = GpuRig(seeing.path, gpu, **KERNELS).run(*adds)
    assert ours == GpuRig(seeing.path, None, **SMALL).run(*adds)


def test_a_cross_encoder_scores_as_on_the_cpu(tmp_path: Path, gpu: CudaDevice) -> None:
    path = save_tiny_encoder(tmp_path, "modernbert", global_attn_every_n_layers=2)
    assert encoder_scores(path, gpu) == pytest.approx(encoder_scores(path, None), abs=1e-3)
