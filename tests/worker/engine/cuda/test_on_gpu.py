"""What no stand-in can show: `make test-gpu`, on a machine with an NVIDIA GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.eventually import Looks
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.conftest import HAS_GPU, NO_GPU
from tests.worker.engine.cuda.test_gpu_engine import SAMPLINGS, GpuRig, requests, told, told_of_all
from tests.worker.engine.near_logprobs import assert_near
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from tests.worker.engine_listener import Listener
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.device.gpu_device import Work
from worker.engine_child.engine_process import EngineProcess
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineCommand, EngineReady, LoadAdapter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason=NO_GPU),
    pytest.mark.timeout(900),  # the first time, kernels are compiled
]

KERNELS: dict[str, Any] = {"attention_backend": "triton", "overlap": True}
MIB = 1 << 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


def keep_graph_pool(gpu: CudaDevice) -> Work:
    """Torch captures nothing more in a pool of which all graphs are gone: one stays."""
    one = torch.zeros(1, device=gpu.torch_device)

    def count() -> None:
        one.add_(1)

    return gpu.capture(count)


def held_bytes() -> int:
    """By tensors."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def wait_until_free(gpu: CudaDevice, num_bytes: int) -> None:
    """The driver takes its time with a process that was killed."""
    for _ in Looks(30, lambda: f"{gpu.free_bytes() // MIB} MiB are free"):
        if gpu.free_bytes() >= num_bytes:
            return


@pytest.mark.parametrize("overlap", [False, True])
def test_every_sampling_gives_the_tokens_of_the_cpu(
    checkpoint: Path, gpu: CudaDevice, overlap: bool
) -> None:
    """In float32, where sums differ in the last bits alone, and no step waits for the GPU."""
    ours = GpuRig(checkpoint, gpu, **KERNELS | {"overlap": overlap}).run(*requests())
    theirs = GpuRig(checkpoint, None).run(*requests())
    assert {name: ours[run_id] for run_id, name in enumerate(SAMPLINGS)} == {
        name: theirs[run_id] for run_id, name in enumerate(SAMPLINGS)
    }


def test_logprobs_are_those_of_the_cpu(checkpoint: Path, gpu: CudaDevice) -> None:
    ours = told(GpuRig(checkpoint, gpu, **KERNELS), num_top=4, num_prompt_top=2)
    assert len(ours) > 40
    assert_near(ours, told_of_all(checkpoint), tolerance=1e-3)


def test_few_pages_guesses_adapters_and_embeddings(
    checkpoint: Path, gpu: CudaDevice, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"num_kv_tokens": 320, "max_running": 6, "max_loras": 1}
    commands: list[EngineCommand] = [
        LoadAdapter("one", str(save_adapter(tmp_path / "one", checkpoint))),
        *(
            make_add(run_id, random_prompt(20 + run_id, run_id), max_tokens=60, ignore_eos=True)
            for run_id in range(8)
        ),
        make_add(8, random_prompt(12, 1) * 4, max_tokens=40, ignore_eos=True),
        make_add(9, random_prompt(30, 2), max_tokens=9, adapter="one", namespace=b"one"),
        make_add(10, random_prompt(40, 9), pooling=PoolingParams(PoolingKind.MEAN)),
    ]
    ours = GpuRig(checkpoint, gpu, speculate="ngram", **KERNELS | config)
    theirs = GpuRig(checkpoint, None, **config)
    assert ours.run(*commands) == theirs.run(*commands)
    load = ours.channel.steps[-1].load
    assert load.num_preemptions
    assert load.num_drafted
    vectors = [
        np.frombuffer(rig.channel.finishes()[10].embedding or b"", "<f4") for rig in (ours, theirs)
    ]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-3)


def test_the_check_finds_what_waits(gpu: CudaDevice) -> None:
    waiting: dict[str, Callable[[], Any]] = {
        "item": lambda: torch.ones(1, device=gpu.torch_device).item(),
        "mask": lambda: torch.ones(3, device=gpu.torch_device).nonzero(),
        "copy": lambda: torch.ones(3).to(gpu.torch_device),
    }
    for work in waiting.values():
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            gpu.enqueue(work)
    assert torch.ones(1, device=gpu.torch_device).item() == 1, "outside of a step it may"


def test_a_graph_repeats_what_was_captured(gpu: CudaDevice) -> None:
    """To the last bit, with other values in the same places."""
    generator = torch.Generator(gpu.torch_device).manual_seed(1)
    weight, x = (
        torch.randn(*shape, generator=generator, device=gpu.torch_device, dtype=torch.bfloat16)
        for shape in ((512, 512), (24, 512))
    )
    output = torch.empty_like(x)

    def work() -> None:
        output.copy_((x @ weight).relu() @ weight)

    def roll(num_rows: int) -> None:
        x.copy_(x.roll(num_rows, 0))

    replay = gpu.capture(work)
    for seed in range(3):
        gpu.enqueue(partial(roll, seed))
        results = []
        for each in (work, replay):
            gpu.enqueue(each)
            results.append(output.clone())
        assert torch.equal(*results)


def test_a_thousand_steps_take_no_memory(checkpoint: Path, gpu: CudaDevice) -> None:
    rig = GpuRig(checkpoint, gpu, **KERNELS)
    held = []
    for _ in range(6):
        rig.run(*requests(max_tokens=200))
        held.append(held_bytes())
    assert rig.channel.steps[-1].step > 1000
    assert held[-1] - held[1] < 64 << 10, "not a hundred bytes a step"


def test_an_engine_that_is_gone_leaves_nothing(checkpoint: Path, gpu: CudaDevice) -> None:
    """But for what the libraries keep, once."""
    kept = keep_graph_pool(gpu)
    held = []
    for _ in range(3):
        GpuRig(checkpoint, gpu, **KERNELS).run(*requests(max_tokens=4))
        held.append((held_bytes(), torch.cuda.memory_reserved()))
    assert held == held[:1] * 3
    del kept


def test_memory_that_others_take_is_done_without(tmp_path: Path, gpu: CudaDevice) -> None:
    """Steps of 8,192 tokens want 1 GiB for the MLP alone."""
    path = save_tiny_llama(tmp_path, intermediate_size=16384, max_position_embeddings=16384)
    config: dict[str, Any] = {"max_step_tokens": 8192, "num_kv_tokens": 20480, "max_running": 4}
    adds = [make_add(run_id, random_prompt(8000, run_id), max_tokens=5) for run_id in (1, 2)]
    kept = keep_graph_pool(gpu)
    rig = GpuRig(path, gpu, **KERNELS | config)
    gpu.give_back()
    others = torch.empty(gpu.unused_bytes() - 512 * MIB, dtype=torch.uint8, device=gpu.torch_device)
    ours = rig.run(*adds)
    fitting = [step.num_fitting for step in rig.channel.steps if step.num_fitting is not None]
    assert fitting
    assert max(fitting) <= 4096
    del others, rig
    held_bytes()
    whole = GpuRig(path, gpu, **KERNELS | config)
    assert ours == whole.run(*adds)
    assert all(step.num_fitting is None for step in whole.channel.steps)
    del kept


async def test_a_killed_engine_gives_its_memory_back(checkpoint: Path, gpu: CudaDevice) -> None:
    before = gpu.free_bytes()
    listener = Listener()
    config = EngineConfig(
        model_path=str(checkpoint),
        device="cuda",
        dtype="float32",
        attention_backend="torch",  # nothing to compile
        cuda_graph_sizes=(1,),
        cuda_graph_tokens=(0,),
        max_running=4,
        max_step_tokens=64,
        kv_memory_bytes=1 << 30,
    )
    engine = EngineProcess(config, listener.on_event, listener.on_exit)
    await engine.start()
    await listener.until_event(EngineReady)
    assert gpu.free_bytes() < before - (1 << 30)
    engine.kill()
    await engine.wait()
    wait_until_free(gpu, before - 64 * MIB)
