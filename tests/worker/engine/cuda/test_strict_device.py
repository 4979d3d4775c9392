"""Every tensor of a step is where it must be, and no step waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worker.engine.cuda.strict_device import DEVICE, NotOnAGpu, StrictDevice, strict_gpu
from tests.worker.engine.cuda.test_gpu_engine import SAMPLINGS, GpuRig
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def strict(interpreter: None) -> Iterator[StrictDevice]:
    with strict_gpu() as gpu:
        yield gpu


@pytest.mark.nightly
def test_every_sampling_gives_the_tokens_of_the_cpu(checkpoint: Path, strict: StrictDevice) -> None:
    """With chunks of prefill, captured decode steps, and some that are too many for a graph."""
    config = {"max_step_tokens": 16, "max_running": 4}
    adds = [
        make_add(run_id, random_prompt(3 + 2 * run_id, run_id), max_tokens=3, **sampling)
        for run_id, sampling in enumerate(SAMPLINGS.values())
    ]
    ours = GpuRig(
        checkpoint,
        strict,
        attention_backend="triton",
        overlap=True,
        cuda_graph_sizes=(3,),
        **config,
    ).run(*adds)
    assert ours == GpuRig(checkpoint, None, **config).run(*adds)


def test_the_strict_device_is_strict(strict: StrictDevice) -> None:
    host = torch.arange(4)
    ours = host.to(DEVICE)
    with pytest.raises(NotOnAGpu, match="a tensor of the host"):
        ours + host
    assert (ours + ours).to("cpu").tolist() == [0, 2, 4, 6]

    def work() -> None:
        for waiting in (
            lambda: ours.sum().item(),
            lambda: ours[ours > 1],
            lambda: ours.nonzero(),
            lambda: ours.to("cpu"),
            lambda: host.to(DEVICE),
        ):
            with pytest.raises(NotOnAGpu):
                waiting()

    strict.enqueue(work)
    strict.mark().wait()
