"""With --deterministic the same request has the same bits, whatever is computed beside it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from shared.errors import ConfigError
from shared.protocol.logprobs import unpack_logprobs
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.cuda.test_kernels import LAYERS, Pool, on, random
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.batch.query_blocks import QueryBlocks
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.cuda.sampling.device_logprobs import DeviceLogprobs
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, RankSockets
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.loading import determinism
from worker.engine.models.registry import read_model_config
from worker.engine.sampling.row_logprobs import Alternatives, row_logprobs
from worker.engine_link.engine_config import EngineConfig


@pytest.fixture
def exact_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Triton's interpreter has numpy multiply tiles, which rounds a row by its place in the tile.

    Tensor cores do not, and neither does what takes numpy's place here.
    """
    if device.type == "cpu":
        from triton.runtime import interpreter

        def dot(_: object, a: Any, b: Any, acc: Any, *__: object) -> Any:
            products = np.einsum("ik,kj->ij", a.data, b.data)
            return interpreter.TensorHandle(products + acc.data, acc.dtype.scalar)

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    return device


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(("num_outputs", "width"), [(70, 72), (33, 8)])
def test_a_product_of_a_row(num_outputs: int, width: int, exact_device: torch.device) -> None:
    from worker.engine.cuda.layers.triton_layer_ops import FixedLinears

    weight, bias = random(num_outputs, width, seed=1), random(num_outputs, seed=2)
    x = random(150, width)
    linear = FixedLinears().make(weight.to(exact_device), bias.to(exact_device))
    together = linear(x.to(exact_device))
    wanted = functional.linear(x, weight, bias)
    torch.testing.assert_close(together.cpu(), wanted, rtol=1e-4, atol=1e-4)
    for start, count in [(0, 1), (70, 1), (3, 17), (20, 100)]:
        part = slice(start, start + count)
        assert torch.equal(linear(x[part].to(exact_device)), together[part])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_of_a_row_on_a_gpu(dtype: torch.dtype, gpu: CudaDevice) -> None:
    """Wherever in a tile of tensor cores it lies."""
    from worker.engine.cuda.layers.triton_layer_ops import FixedLinears

    for num_outputs in (1000, 8192, 32768):  # of each width of tiles
        weight = random(num_outputs, 1024).to(gpu.torch_device, dtype)
        x = random(200, 1024, seed=1).to(gpu.torch_device, dtype)
        linear = FixedLinears().make(weight, None)
        together = linear(x)
        wanted = functional.linear(x.float(), weight.float())
        torch.testing.assert_close(together.float(), wanted, rtol=2e-2, atol=0.5)
        alone = torch.cat([linear(x[row : row + 1]) for row in range(len(x))])
        assert torch.equal(alone, together)


@pytest.mark.parametrize("name", LAYERS)
def test_attention_of_a_query(name: str, exact_device: torch.device) -> None:
    """Of 100 tokens: as one chunk, in chunks of any length, and as the last row alone."""
    from worker.engine.cuda.kernels.extend_attention import extend_attention

    layer, seq_len = LAYERS[name], 100
    has_latents = layer.latent_dim is not None
    pool = Pool([seq_len, 40], layer.num_kv_heads, layer.head_dim, has_latents=has_latents)
    q = random(seq_len, layer.num_heads, layer.head_dim)

    def attend(blocks: Sequence[tuple[int, int]], max_pages: int) -> torch.Tensor:
        """`blocks`: first position, and how many."""
        table = np.array([(0, start, start, count) for start, count in blocks], np.int32)
        output = torch.zeros_like(q[..., : layer.latent_dim], device=exact_device)
        extend_attention(
            q.to(exact_device),
            pool.keys.to(exact_device),
            pool.values.to(exact_device),
            pool.page_table[:, :max_pages].contiguous().to(exact_device),
            QueryBlocks(torch.from_numpy(table).to(exact_device), 32),
            on(layer, exact_device),
            32,
            output,
        )
        return output

    whole = attend([(start, min(32, seq_len - start)) for start in range(0, seq_len, 32)], 7)
    chunks = attend([(0, 1), (1, 30), (31, 32), (63, 2), (65, 31), (96, 4)], 7)
    assert torch.equal(chunks, whole)
    for position in (0, 63, 64, 99):
        alone = attend([(position, 1)], position // 16 + 1)
        assert torch.equal(alone[position], whole[position])


@pytest.mark.parametrize(
    "family",
    ["llama", pytest.param("mixtral", marks=(pytest.mark.nightly, pytest.mark.timeout(300)))],
)
def test_a_request_alone_and_in_company(
    tmp_path: Path, family: str, exact_device: torch.device
) -> None:
    """In chunks of 16; of 24, beside others; handed over, where its prefix is cached already."""
    small: dict[str, Any] = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    if family == "mixtral":
        small |= {"num_local_experts": 3, "intermediate_size": 32}
    path = save_tiny_model(tmp_path, family, **small)
    gpu: GpuDevice = LateDevice() if exact_device.type == "cpu" else CudaDevice()
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 5, "top_p": 0.9, "logprobs": 2}
    sampling["ignore_eos"] = True
    prompt = random_prompt(40, 1)
    subject = make_add(1, prompt, max_tokens=4, **sampling)
    alone = fixed_rig(path, gpu, max_step_tokens=16)
    output = alone.run(subject)[1]
    wanted = records_of(alone)
    assert len(wanted) == 4

    others = [make_add(2, [5, 6, 7, 5, 6, 7, 5, 6], max_tokens=4), make_add(3, [9], max_tokens=2)]
    crowded = fixed_rig(path, gpu, max_step_tokens=24, overlap=True, speculate="ngram")
    crowded.run(*others, subject)
    assert records_of(crowded) == wanted

    crowded.channel.events.clear()
    crowded.run(make_add(1, prompt, output[:3], max_tokens=4, **sampling))
    assert records_of(crowded) == wanted[3:]


def fixed_rig(path: Path, gpu: GpuDevice, **config: Any) -> GpuRig:
    defaults = {"attention_backend": "auto", "cuda_graph_sizes": (2,), "cuda_graph_tokens": (8,)}
    return GpuRig(
        path,
        gpu,
        deterministic=True,
        **(defaults | {"max_running": 3, "num_kv_tokens": 128} | config),
    )


def records_of(rig: GpuRig) -> list[bytes]:
    """Of request 1: the bytes of each token with its logprobs."""
    outputs = [each for step in rig.channel.steps for each in step.outputs if each.run_id == 1]
    return [each.logprobs for each in outputs if each.logprobs]


def test_logprobs_are_the_cpus_and_equal_ones_in_its_order() -> None:
    logits = (random(6, 500) * 4).round() / 4  # many are equal
    logits[2, :3] = torch.tensor([0.0, -0.0, -torch.inf])
    token_ids = torch.tensor([3, 499, 1, 7, 0, 250])
    named: list[tuple[int, ...]] = [(), (), (9,), (4, 2), (), (499,)]
    asked = [
        (row, Alternatives(num_top, named[row])) for row, num_top in enumerate([5, 0, 19, 1, 3, 2])
    ]
    together = DeviceLogprobs.of(LateDevice(), asked, logits, token_ids).records(token_ids.tolist())
    for row, alternatives in asked:
        token_id = int(token_ids[row])
        wanted = row_logprobs(logits[row].numpy(), token_id, alternatives)
        assert_same_record(together[row], wanted, alternatives.num)
        alone = DeviceLogprobs.of(
            LateDevice(), [(0, alternatives)], logits[row : row + 1], token_ids[row : row + 1]
        )
        assert alone.records([token_id])[0] == together[row]


def assert_same_record(ours: bytes, theirs: bytes, num_top: int) -> None:
    (one,), (other,) = (unpack_logprobs(record, num_top) for record in (ours, theirs))
    assert (one.token_id, one.rank) == (other.token_id, other.rank)
    assert one.logprob == pytest.approx(other.logprob, rel=1e-6)
    assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]


GPT2 = """{
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 64,
    "activation_function": "quick_gelu"
}"""


def test_a_sum_over_ranks_is_rounded_once() -> None:
    ours, theirs = socket.socketpair()
    ones = torch.full((3, 4), 1.0, dtype=torch.bfloat16)
    values = torch.arange(12.0).view(3, 4).to(torch.bfloat16) * 32
    summed = values.clone()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        other = thread.submit(RankGroup(RankSockets(1, 2, [theirs])).sum_in_order, ones)
        RankGroup(RankSockets(0, 2, [ours])).sum_in_order(summed)
        other.result()
    assert torch.equal(summed, (values.float() + 1.0).to(torch.bfloat16))
    assert torch.equal(ones, summed)


def test_what_cannot_be_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="attention_backend=torch: it has attention of its own"):
        GpuRig(checkpoint, LateDevice(), deterministic=True)
    with pytest.raises(ConfigError, match="take dtype=float32, or cpu_kernels=native"):
        GpuRig(checkpoint, None, deterministic=True, dtype="bfloat16")
    model = read_model_config(checkpoint)
    ranks = EngineConfig(deterministic=True, device="cpu", tp=2)
    determinism.check_on_ranks(ranks, model, torch.float32)
    with pytest.raises(ConfigError, match="with tp=2 on a CPU in bfloat16: take dtype=float32"):
        determinism.check_on_ranks(ranks, model, torch.bfloat16)


@pytest.mark.parametrize("gpu", [None, LateDevice()], ids=["cpu", "gpu"])
def test_what_transformers_computes_is_refused(tmp_path: Path, gpu: GpuDevice | None) -> None:
    (tmp_path / "config.json").write_text(GPT2)
    with pytest.raises(ConfigError, match="not possible with GPT2LMHeadModel: its products round"):
        GpuRig(tmp_path, gpu, deterministic=True, attention_backend="auto", load_format="dummy")


def test_on_a_cpu_it_is_so_in_float32(checkpoint: Path) -> None:
    """tests/worker/engine/loop/test_invariance.py proves it; here it is only allowed."""
    add = make_add(1, random_prompt(9, 1), max_tokens=3)
    assert len(GpuRig(checkpoint, None, deterministic=True).run(add)[1]) == 3
