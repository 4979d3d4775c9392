"""`python -m tests.worker.engine.cuda.compile_kernels [8.0 | 8.6 | ... | 12.0] [all]`: what a GPU
of that compute capability (9.0: H100) would run, compiled, and what it takes of it.

The functions that launch the kernels are called with the shapes of real models, on tensors that
have no memory; whatever they launch is compiled in place of it, specialised as it would be. Needs
triton, and neither a GPU nor its driver. Fails where shared memory is too small, or where more than
a few registers are kept in memory.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.jit import JITFunction

from worker.engine.cuda.batch.attention_tiles import (
    Capability,
    decode_keys,
    extend_keys,
    shared_bytes,
)
from worker.engine.cuda.batch.key_splits import KeySplits
from worker.engine.cuda.batch.query_blocks import QueryBlocks, block_queries
from worker.engine.cuda.kernels import expert_kernels, layer_kernels, sampling_kernels
from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention
from worker.engine.cuda.kernels.extend_attention import extend_attention
from worker.engine.cuda.kernels.fixed_linear import fixed_linear
from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds
from worker.engine.cuda.kernels.page_lists import list_pages
from worker.engine.cuda.kernels.scan_kernels import TritonScans
from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, skinny_linear
from worker.engine.cuda.kv.kv_dtype import FP8_CAPABILITY, KV_FP8
from worker.engine.cuda.layers.linear_trial import candidates
from worker.engine.layers.attention_backend import AttentionLayer

NUM_PROCESSORS = 132
FEW_SPILLED_BYTES = 256  # of a thread
NOWHERE = torch.device("meta")
BF16, F32 = torch.bfloat16, torch.float32
NUM_ROWS, NUM_PIECES, MAX_PAGES, NUM_PAGES, PAGE_SIZE = 6, 20, 40, 100, 16

empty = functools.partial(torch.empty, device=NOWHERE)


class NoDriver:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: Capability) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Case(NamedTuple):
    name: str
    launch: Callable[[], object]


class Heads(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_dim: int


FAMILIES = [
    Heads(8, 1, 256),  # Gemma 2B
    Heads(16, 8, 256),  # Gemma 2 9B
    Heads(8, 1, 512),  # Gemma 4 E2B, where a layer has no window
    Heads(32, 32, 80),  # Phi-2
    Heads(96, 8, 128),  # GLM 4.5
    Heads(48, 1, 128),  # StarCoder
]
LATENTS = [  # 512 values of each are the value
    Heads(128, 1, 576),  # DeepSeek V3
    Heads(16, 1, 576),  # DeepSeek V2 Lite
]


def chosen(gpu: Capability) -> Iterator[Case]:
    """One of each kind, and attention in bfloat16 with unusual heads: a minute."""
    heads = Heads(32, 8, 128)
    kv_dtype = KV_FP8 if gpu >= FP8_CAPABILITY else BF16
    every_kind = {"window": 4096, "soft_cap": 50.0, "sinks": empty(32, dtype=BF16)}
    yield from attention(gpu, heads, BF16, BF16)
    yield from attention(gpu, heads, BF16, kv_dtype, **every_kind)
    yield from append(heads, BF16, kv_dtype, has_norm=True)
    yield from layers(4096, 12288, BF16)
    yield from linears(4096, 4096, BF16)
    yield from experts(128, 8, 2048, 768, BF16)
    yield from sampling(151936)
    yield from scans()
    yield from pages()
    for family in FAMILIES:
        yield from attention(gpu, family, BF16, BF16)
    for family in LATENTS:
        yield from attention(gpu, family, BF16, BF16, latent_dim=512)


def all_cases(gpu: Capability) -> Iterator[Case]:
    """Whatever the engine may meet."""
    kinds: list[dict[str, Any]] = [
        {},
        {"window": 4096},
        {"chunk": 8192},
        {"soft_cap": 50.0},
        {"sinks": True},
    ]
    for dtype, head_dim, group in itertools.product((BF16, F32), (64, 128), (1, 2, 4, 7, 8)):
        heads = Heads(8 * group, 8, head_dim)
        kv_dtypes = (dtype, KV_FP8) if gpu >= FP8_CAPABILITY else (dtype,)
        for kv_dtype, kind in itertools.product(kv_dtypes, kinds):
            if "sinks" in kind:
                kind = {"sinks": empty(heads.num_heads, dtype=dtype)}
            yield from attention(gpu, heads, dtype, kv_dtype, **kind)
        for kv_dtype, has_norm in itertools.product(kv_dtypes, (False, True)):
            yield from append(heads, dtype, kv_dtype, has_norm=has_norm)
    for dtype, family in itertools.product((BF16, F32), FAMILIES):
        yield from attention(gpu, family, dtype, dtype)
    for dtype, family in itertools.product((BF16, F32), LATENTS):
        yield from attention(gpu, family, dtype, dtype, latent_dim=512)
    for dtype, (hidden_size, size) in itertools.product(
        (BF16, F32), ((64, 172), (1024, 3072), (2048, 6144), (4096, 12288), (8192, 28672))
    ):
        yield from layers(hidden_size, size, dtype)
        for num_outputs in (hidden_size, 2 * size, 151936):
            yield from linears(num_outputs, hidden_size, dtype)
    for dtype, (num_experts, num_chosen, hidden_size, size) in itertools.product(
        (BF16, F32), ((8, 2, 4096, 14336), (32, 4, 2880, 2880), (512, 10, 2048, 512))
    ):
        yield from experts(num_experts, num_chosen, hidden_size, size, dtype)
    for vocab_size in (300, 32000, 128256, 151936):
        yield from sampling(vocab_size)
    yield from scans()
    yield from pages()


def attention(
    gpu: Capability, heads: Heads, dtype: torch.dtype, kv_dtype: torch.dtype, **kind: Any
) -> Iterator[Case]:
    layer = AttentionLayer(*heads, heads.head_dim**-0.5, **kind)
    q = empty(NUM_ROWS, layer.num_heads, layer.head_dim, dtype=dtype)
    pool = _pool(layer.num_kv_heads, layer.head_dim, kv_dtype)
    table = empty(NUM_ROWS, MAX_PAGES, dtype=torch.int32)
    seq_lens = empty(NUM_ROWS, dtype=torch.int32)
    blocks = QueryBlocks(empty(NUM_ROWS, 4, dtype=torch.int32), block_queries(layer, dtype))
    splits = KeySplits(
        empty(NUM_PIECES, 3, dtype=torch.int32), empty(NUM_ROWS + 1, dtype=torch.int32)
    )
    scratch = DecodeScratch.of(NUM_PIECES, layer.num_heads, layer.num_values, NOWHERE)
    output = empty(NUM_ROWS, layer.num_heads, layer.num_values, dtype=dtype)
    name = " ".join([*map(str, heads), *kind, f"{dtype} over {kv_dtype}"])
    yield Case(
        f"decode {name}",
        lambda: decode_attention(
            q,
            pool,
            pool,
            table,
            seq_lens,
            layer,
            splits,
            scratch,
            decode_keys(layer, dtype, gpu),
            output,
        ),
    )
    yield Case(
        f"extend {name}",
        lambda: extend_attention(
            *(q, pool, pool, table, blocks, layer),
            extend_keys(layer, dtype, gpu),
            output,
        ),
    )


def append(
    heads: Heads, dtype: torch.dtype, kv_dtype: torch.dtype, *, has_norm: bool
) -> Iterator[Case]:
    num_rotated = heads.num_heads + heads.num_kv_heads
    qkv = empty(NUM_ROWS, num_rotated + heads.num_kv_heads, heads.head_dim, dtype=dtype)
    norm = empty(num_rotated, heads.head_dim, dtype=dtype) if has_norm else None
    angles = empty(4096, heads.head_dim // 2, dtype=F32)
    places = empty(NUM_ROWS, dtype=torch.int64)
    pool = _pool(heads.num_kv_heads, heads.head_dim, kv_dtype)
    yield Case(
        " ".join(["append", *map(str, heads), f"{dtype} to {kv_dtype}", "norm" * has_norm]),
        lambda: layer_kernels.rotate_and_append(
            qkv, norm, 1e-6, angles, angles, places, pool, pool, places
        ),
    )


def layers(hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> Iterator[Case]:
    x, weight = empty(NUM_ROWS, hidden_size, dtype=dtype), empty(hidden_size, dtype=dtype)
    gate_up = empty(NUM_ROWS, 2 * intermediate_size, dtype=dtype)
    name = f"{hidden_size} of {dtype}"
    yield Case(f"norm {name}", lambda: layer_kernels.add_rms_norm(x, x, weight, 1e-6))
    yield Case(f"silu {name}", lambda: layer_kernels.silu_mul(gate_up))


def linears(num_outputs: int, width: int, dtype: torch.dtype) -> Iterator[Case]:
    x, weight = empty(NUM_ROWS, width, dtype=dtype), empty(num_outputs, width, dtype=dtype)
    for tiles in candidates(weight.shape, NUM_PROCESSORS):
        scratch = SkinnyScratch.of(num_outputs, tiles, NOWHERE)
        yield Case(
            f"skinny linear {num_outputs} {width} of {dtype} by {tuple(tiles)}",
            functools.partial(skinny_linear, x, weight, None, tiles, scratch),
        )
    yield Case(
        f"fixed linear {num_outputs} {width} of {dtype}", lambda: fixed_linear(x, weight, None)
    )


def experts(
    num_experts: int, num_chosen: int, hidden_size: int, size: int, dtype: torch.dtype
) -> Iterator[Case]:
    name = f"{num_chosen} of {num_experts} experts, {hidden_size} {size} of {dtype}"
    logits, shares = empty(NUM_ROWS, num_experts, dtype=F32), empty(NUM_ROWS, num_chosen, dtype=F32)
    expert_ids = empty(NUM_ROWS, num_chosen, dtype=torch.int64)
    for is_softmax in (True, False):
        yield Case(
            f"choice of {name}",
            functools.partial(
                expert_kernels.choose_best,
                logits,
                None if is_softmax else empty(num_experts, dtype=F32),
                num_chosen,
                is_softmax=is_softmax,
                norm_eps=1e-20,
                scale=1.0,
            ),
        )
    num_rows = NUM_ROWS * num_chosen
    order, counts = empty(num_rows, dtype=torch.int32), empty(num_experts, dtype=torch.int32)
    rows = expert_kernels.ExpertRows(order, counts)
    yield Case(f"order of {name}", lambda: expert_kernels.sort_rows(expert_ids, num_experts))
    ups = empty(num_experts, 2 * size, hidden_size, dtype=dtype)
    downs = empty(num_experts, hidden_size, size, dtype=dtype)
    biases = empty(num_experts, hidden_size, dtype=dtype)
    x, inner = empty(NUM_ROWS, hidden_size, dtype=dtype), empty(num_rows, size, dtype=dtype)
    for block_rows in (expert_kernels.FEW_ROWS, expert_kernels.MANY_ROWS):
        linear = functools.partial(expert_kernels.expert_linear, rows=rows, block_rows=block_rows)
        yield Case(
            f"way up of {name} by {block_rows}",
            functools.partial(linear, x, ups, None, num_chosen=num_chosen),
        )
        yield Case(
            f"way down of {name} by {block_rows}",
            functools.partial(linear, inner, downs, biases, num_chosen=None),
        )
    outputs = empty(num_rows, hidden_size, dtype=dtype)
    yield Case(f"sums of {name}", lambda: expert_kernels.sum_shares(outputs, shares))


def sampling(vocab_size: int) -> Iterator[Case]:
    logits = empty(NUM_ROWS, vocab_size, dtype=F32)
    floats, integers = empty(NUM_ROWS, dtype=F32), empty(NUM_ROWS, dtype=torch.int64)
    yield Case(
        f"draw of {vocab_size}",
        lambda: sampling_kernels.draw(logits, floats, floats, integers, integers),
    )
    yield Case(
        f"thresholds of {vocab_size}",
        lambda: find_kept_thresholds(logits, floats, integers, floats, floats),
    )


def scans() -> Iterator[Case]:
    """In the shapes of Qwen3-Next, Kimi Linear, Nemotron-H, MiniMax and Falcon Mamba."""
    slots = empty(NUM_ROWS, dtype=torch.int64)
    nowhere = TritonScans(slots, [1] * NUM_ROWS, (), lambda values: values.to(NOWHERE))

    def tokens(*shape: int) -> torch.Tensor:
        return empty(NUM_ROWS, *shape, dtype=F32)

    for num_heads, value_dim, key_dim, num_decays in ((32, 128, 128, 1), (32, 128, 128, 128)):
        vectors = tokens(num_heads, key_dim)
        yield Case(
            f"gated delta of {num_heads} {value_dim} {key_dim} by {num_decays}",
            functools.partial(
                nowhere.gated_delta,
                empty(NUM_ROWS, num_heads, value_dim, key_dim, dtype=F32),
                tokens(num_heads, num_decays),
                tokens(num_heads),
                vectors,
                vectors,
                tokens(num_heads, value_dim),
            ),
        )
    for num_heads, head_dim, state_size, num_rates in (
        (128, 64, 128, (1, 1)),
        (64, 128, 128, (1, 1)),
        (1, 8192, 16, (8192, 16)),
    ):
        vectors = tokens(num_heads, state_size)
        yield Case(
            f"selective scan of {num_heads} {head_dim} {state_size}",
            functools.partial(
                nowhere.selective,
                empty(NUM_ROWS, num_heads, head_dim, state_size, dtype=F32),
                tokens(num_heads, num_rates[0]),
                empty(num_heads, *num_rates, dtype=F32),
                tokens(num_heads, head_dim),
                vectors,
                vectors,
            ),
        )


def pages() -> Iterator[Case]:
    table, starts = empty(NUM_ROWS, MAX_PAGES, dtype=torch.int32), empty(7, dtype=torch.int32)
    rows, listed = empty(NUM_ROWS, dtype=torch.int64), empty(NUM_PAGES, dtype=torch.int32)
    yield Case("pages", lambda: list_pages(table, rows, starts, MAX_PAGES, listed))


def _pool(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return empty(NUM_PAGES, PAGE_SIZE, num_kv_heads, head_dim, dtype=dtype)


def _compile_only(capability: Capability) -> None:
    driver = NoDriver(capability)

    def compile_in_place(kernel: JITFunction[Any], grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            compiled = kernel.run(*args, grid=grid, warmup=True, **named)
            assert compiled.metadata.shared <= shared_bytes(capability), compiled.metadata
            spilled = _spilled_bytes(compiled.asm["ptx"], driver.get_current_target().arch)
            assert spilled <= FEW_SPILLED_BYTES, f"{spilled} bytes of registers lie in memory"

        return launch

    triton.runtime.driver.set_active(driver)
    JITFunction.__getitem__ = compile_in_place


def _spilled_bytes(ptx: str, arch: int) -> int:
    """Of a thread."""
    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={target[1]}", source, "-o", os.devnull]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", told)))


def main(argv: list[str]) -> None:
    named = [each for each in argv if each != "all"] or ["9.0"]
    major, minor = map(int, named[0].split("."))
    capability = (major, minor)
    _compile_only(capability)
    for case in (all_cases if "all" in argv else chosen)(capability):
        begin = time.monotonic()
        case.launch()
        sys.stdout.write(f"{time.monotonic() - begin:6.2f} s {case.name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
