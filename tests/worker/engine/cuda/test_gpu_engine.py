"""The engine on a GPU that is late, with plain torch for its kernels: its tokens are the CPU's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError
from shared.protocol.logprobs import TokenLogprob, unpack_logprobs
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.near_logprobs import assert_near
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import FakeChannel, make_add
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.gpu_dtype import computes_bfloat16
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.loop.engine import Engine
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AddRequest, EngineCommand, LoadAdapter

DEFAULTS: dict[str, Any] = {
    "num_threads": 1,
    "num_kv_tokens": 1024,
    "max_running": 16,
    "max_step_tokens": 64,
    "max_step_s": 60.0,
    "target_itl_s": 60.0,
    "dtype": "float32",
    "cpu_kernels": "torch",
}

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 2**63 + 5},
    "kept": {"temperature": 1.3, "seed": 3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "narrowed": {
        "temperature": 0.9,
        "seed": 4,
        "typical_p": 0.8,
        "dynatemp_range": 0.5,
        "top_k": 100,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.004,
    },
    "biased": {"logit_bias": ((50, 9.0), (51, 8.5)), "min_tokens": 4},
    "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "unrepeated": {"dry_multiplier": 3.0, "dry_allowed_length": 0, "temperature": 0.8, "seed": 6},
    "allowed": {"allowed_token_ids": tuple(range(20, 60)), "temperature": 1.0, "seed": 9},
    "banned": {"bad_words": ((55,), (60, 61))},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2, "temperature": 0.7, "seed": 1},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


class GpuRig:
    """An engine over a late device, or on the CPU itself."""

    def __init__(self, path: Path, gpu: GpuDevice | None, **config: Any) -> None:
        self.channel = FakeChannel()
        defaults = DEFAULTS | {
            "device": "cpu" if gpu is None else "cuda",
            "attention_backend": "torch",
        }
        engine_config = EngineConfig(model_path=str(path), **(defaults | config))
        self.loop = EngineLoader(engine_config, self.channel, gpu=gpu).load()
        assert isinstance(self.loop._engine, Engine)
        self.engine = self.loop._engine

    def run(self, *commands: EngineCommand) -> dict[int, list[int]]:
        self.channel.commands = list(commands)
        self.loop.run(until_idle=True)
        self.engine._scheduler.check_integrity()
        return self.channel.tokens()


def requests(max_tokens: int = 20) -> list[AddRequest]:
    """One of each sampling, with prompts of many lengths: chunks, pages and prefixes in common."""
    prompt = random_prompt(90, seed=1)
    lens = [1, 17, 90, 71, 40, 33, 85, 64, 5, 48]
    return [
        make_add(run_id, prompt[:length], max_tokens=max_tokens, ignore_eos=True, **sampling)
        for run_id, (length, sampling) in enumerate(zip(lens, SAMPLINGS.values(), strict=True))
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_every_sampling_gives_the_tokens_of_the_cpu(checkpoint: Path, overlap: bool) -> None:
    device = LateDevice()
    ours = GpuRig(checkpoint, device, overlap=overlap).run(*requests())
    theirs = GpuRig(checkpoint, None).run(*requests())
    assert {name: ours[run_id] for run_id, name in enumerate(SAMPLINGS)} == {
        name: theirs[run_id] for run_id, name in enumerate(SAMPLINGS)
    }
    assert device.num_replays > 10
    if overlap:
        assert device.max_waiting > 1, "no step was launched before the last one was done"


def test_logprobs_are_those_of_the_cpu(checkpoint: Path) -> None:
    ours = told(GpuRig(checkpoint, LateDevice(), overlap=True), num_top=4, num_prompt_top=2)
    assert len(ours) > 40
    assert_near(ours, told_of_all(checkpoint), tolerance=1e-4)


def told(
    rig: GpuRig,
    num_top: int,
    num_prompt_top: int,
    prompt_ids: list[int] | None = None,
    max_tokens: int = 6,
) -> list[TokenLogprob]:
    """Of a prompt, and of what is generated behind it."""
    logprobs: dict[str, Any] = {"logprobs": num_top, "prompt_logprobs": num_prompt_top}
    prompt_ids = random_prompt(60, 1) if prompt_ids is None else prompt_ids
    rig.run(make_add(1, prompt_ids, max_tokens=max_tokens, **logprobs))
    outputs = [output for step in rig.channel.steps for output in step.outputs]
    prompt = b"".join(output.prompt_logprobs for output in outputs)
    records = b"".join(output.logprobs for output in outputs)
    return [*unpack_logprobs(prompt, num_prompt_top), *unpack_logprobs(records, num_top)]


def told_of_all(checkpoint: Path) -> list[TokenLogprob]:
    """By the CPU, with the logprob of each token that there is."""
    rig = GpuRig(checkpoint, None)
    vocab_size = rig.loop._ready.vocab_size
    return told(rig, vocab_size, vocab_size)


def test_few_pages_and_retractions_change_nothing(checkpoint: Path) -> None:
    """Rows change hands, pages are evicted and come back: the device's page table follows."""
    adds = [
        make_add(run_id, random_prompt(20 + run_id, run_id), max_tokens=60, ignore_eos=True)
        for run_id in range(8)
    ]
    device = LateDevice()
    ours = GpuRig(checkpoint, device, num_kv_tokens=320, overlap=True, max_running=6).run(*adds)
    assert ours == GpuRig(checkpoint, None).run(*adds)


def test_adapters_run_beside_each_other(checkpoint: Path, tmp_path: Path) -> None:
    """And beside requests that have none."""
    loads = [
        LoadAdapter(name, str(save_adapter(tmp_path / name, checkpoint, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    ]
    adds = [
        make_add(run_id, random_prompt(9 + run_id, run_id), max_tokens=12, adapter=adapter)
        for run_id, adapter in enumerate(("one", "", "two", "one"))
    ]
    ours = GpuRig(checkpoint, LateDevice(), overlap=True).run(*loads, *adds)
    assert ours == GpuRig(checkpoint, None).run(*loads, *adds)


def test_keys_and_values_get_what_is_left(checkpoint: Path) -> None:
    """Less the share that is kept free, a step, and the graphs, some of which are tried before."""
    device = LateDevice(64 << 20)
    device.bytes_per_graph = 1 << 20
    config: dict[str, Any] = {"num_kv_tokens": None, "cuda_graph_tokens": (8, 16, 32)}
    rig = GpuRig(checkpoint, device, cuda_graph_sizes=(1, 2, 3, 4, 5), **config)
    assert device.num_graphs == 8, "those that were tried are gone"
    bytes_per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, dimensions, bytes
    left = int(64 * 0.92) - 1 - 8
    num_tokens = rig.loop._ready.num_kv_tokens
    assert num_tokens == pytest.approx((left << 20) / bytes_per_token, rel=0.05)
    device = LateDevice(12 << 20)
    device.bytes_per_graph = 1 << 20
    with pytest.raises(ConfigError, match=r"no room for keys and values.* graphs 13 MiB"):
        GpuRig(checkpoint, device, cuda_graph_sizes=tuple(range(1, 11)), **config)


def test_keys_and_values_in_eight_bits_are_rounded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are in a pool of the model's dtype that is given rounded ones."""
    adds = requests(max_tokens=8)
    ours = GpuRig(checkpoint, LateDevice(), kv_dtype="fp8", overlap=True).run(*adds)
    assert ours != GpuRig(checkpoint, LateDevice()).run(*adds)
    write = GpuKVPool.write

    def write_rounded(
        pool: GpuKVPool, layer_id: int, out_loc: torch.Tensor, *new: torch.Tensor
    ) -> None:
        keys, values = (each.to(torch.float8_e4m3fn).float() for each in new)
        write(pool, layer_id, out_loc, keys, values)

    monkeypatch.setattr(GpuKVPool, "write", write_rounded)
    assert ours == GpuRig(checkpoint, LateDevice()).run(*adds)


def test_eight_bits_hold_more_tokens(checkpoint: Path) -> None:
    config: dict[str, Any] = {"num_kv_tokens": None, "kv_memory_bytes": 1 << 20}
    whole, half = (
        GpuRig(checkpoint, LateDevice(), kv_dtype=name, **config).loop._ready.num_kv_tokens
        for name in ("auto", "fp8")
    )
    assert half == 4 * whole  # of float32


def test_eight_bits_are_refused_where_they_are_not_possible(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="kv_dtype=fp8 needs a GPU: on a CPU"):
        GpuRig(checkpoint, None, kv_dtype="fp8")
    old = LateDevice()
    old.capability = (8, 6)
    with pytest.raises(ConfigError, match="kv_dtype=fp8 needs a GPU of compute capability"):
        GpuRig(checkpoint, old, kv_dtype="fp8")
    old.capability = (7, 5)
    with pytest.raises(ConfigError, match=r"dtype=bfloat16 needs .* has 7\.5: dtype=float32"):
        GpuRig(checkpoint, old, dtype="bfloat16")
    assert not computes_bfloat16(old), "auto takes float32"
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.k_scale"] = torch.ones(())
    save_file(tensors, tmp_path / "model.safetensors")
    GpuRig(tmp_path, LateDevice())
    with pytest.raises(ConfigError, match=r"has 1 \(model.layers.0.self_attn.k_scale, "):
        GpuRig(tmp_path, LateDevice(), kv_dtype="fp8")


def test_the_kernels_give_the_tokens_of_the_cpu(tmp_path: Path, device: torch.device) -> None:
    path = save_tiny_llama(tmp_path, num_attention_heads=2, num_key_value_heads=1)
    gpu: GpuDevice = LateDevice() if device.type == "cpu" else CudaDevice(check_syncs=True)
    config = {"overlap": True, "attention_backend": "triton", "cuda_graph_sizes": (2,)}
    config |= {"cuda_graph_tokens": (8,), "max_step_tokens": 16, "max_running": 3}
    adds = [
        make_add(1, random_prompt(21, 1), max_tokens=4),
        make_add(2, random_prompt(5, 2), max_tokens=3, temperature=1.0, seed=5, top_p=0.8),
    ]
    assert GpuRig(path, gpu, **config).run(*adds) == GpuRig(path, None).run(*adds)


def test_without_a_gpu_there_is_no_cuda(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="torch finds no NVIDIA GPU"):
        GpuRig(checkpoint, None, device="cuda")


def test_what_is_on_the_gpu_is_told(checkpoint: Path) -> None:
    device = LateDevice()
    rig = GpuRig(checkpoint, device, overlap=True)
    rig.run(make_add(1, random_prompt(9, 1), max_tokens=2))
    gpu = rig.loop._ready.gpu
    assert gpu is not None
    assert (gpu.name, gpu.attention) == (device.name, "torch")
    assert (gpu.dtype, gpu.kv_dtype) == ("float32", "float32")
    assert gpu.weight_bytes == device.held_bytes()
    assert gpu.kv_bytes == 2 * 2 * (1024 + 16) * 2 * 16 * 4  # layers, kinds, slots, heads
    assert rig.channel.steps[-1].load.gpu_free_bytes == device.total_bytes()
    assert GpuRig(checkpoint, None).loop._ready.gpu is None
