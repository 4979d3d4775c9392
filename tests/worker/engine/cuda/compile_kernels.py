"""`python -m tests.worker.engine.cuda.compile_kernels [all]`: what an H100 would run, compiled.

The functions that launch the kernels are called with the shapes of real models, on tensors that
have no memory; whatever they launch is compiled in place of it, specialised as it would be. Needs
triton, and neither a GPU nor its driver.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from worker.engine.cuda.batch.key_splits import KeySplits
from worker.engine.cuda.batch.query_blocks import QueryBlocks, block_queries
from worker.engine.cuda.kernels import layer_kernels, sampling_kernels
from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention
from worker.engine.cuda.kernels.extend_attention import extend_attention
from worker.engine.cuda.kernels.fixed_linear import fixed_linear
from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds
from worker.engine.cuda.kernels.page_lists import list_pages
from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, skinny_linear
from worker.engine.cuda.kv.kv_dtype import KV_FP8
from worker.engine.cuda.layers.linear_trial import candidates
from worker.engine.layers.attention_backend import AttentionLayer

TARGET = GPUTarget("cuda", 90, 32)
NUM_PROCESSORS = 132
SHARED_BYTES = 227 << 10  # that a program may have there
NOWHERE = torch.device("meta")
BF16, F32 = torch.bfloat16, torch.float32
NUM_ROWS, NUM_PIECES, MAX_PAGES, NUM_PAGES, PAGE_SIZE = 6, 20, 40, 100, 16

empty = functools.partial(torch.empty, device=NOWHERE)


class NoDriver:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

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


def chosen() -> Iterator[Case]:
    """One of each kind: few seconds."""
    heads = Heads(32, 8, 128)
    every_kind = {"window": 4096, "soft_cap": 50.0, "sinks": empty(32, dtype=BF16)}
    yield from attention(heads, BF16, BF16)
    yield from attention(heads, BF16, KV_FP8, **every_kind)
    yield from append(heads, BF16, KV_FP8, has_norm=True)
    yield from layers(4096, 12288, BF16)
    yield from linears(4096, 4096, BF16)
    yield from sampling(151936)
    yield from pages()


def all_cases() -> Iterator[Case]:
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
        for kv_dtype, kind in itertools.product((dtype, KV_FP8), kinds):
            if "sinks" in kind:
                kind = {"sinks": empty(heads.num_heads, dtype=dtype)}
            yield from attention(heads, dtype, kv_dtype, **kind)
        for kv_dtype, has_norm in itertools.product((dtype, KV_FP8), (False, True)):
            yield from append(heads, dtype, kv_dtype, has_norm=has_norm)
    for dtype, family in itertools.product((BF16, F32), FAMILIES):
        yield from attention(family, dtype, dtype)
    for dtype, (hidden_size, size) in itertools.product(
        (BF16, F32), ((64, 172), (1024, 3072), (2048, 6144), (4096, 12288), (8192, 28672))
    ):
        yield from layers(hidden_size, size, dtype)
        for num_outputs in (hidden_size, 2 * size, 151936):
            yield from linears(num_outputs, hidden_size, dtype)
    for vocab_size in (300, 32000, 128256, 151936):
        yield from sampling(vocab_size)
    yield from pages()


def attention(
    heads: Heads, dtype: torch.dtype, kv_dtype: torch.dtype, **kind: Any
) -> Iterator[Case]:
    layer = AttentionLayer(*heads, heads.head_dim**-0.5, **kind)
    q = empty(NUM_ROWS, layer.num_heads, layer.head_dim, dtype=dtype)
    pool = _pool(layer.num_kv_heads, layer.head_dim, kv_dtype)
    table = empty(NUM_ROWS, MAX_PAGES, dtype=torch.int32)
    seq_lens = empty(NUM_ROWS, dtype=torch.int32)
    blocks = QueryBlocks(empty(NUM_ROWS, 4, dtype=torch.int32), block_queries(layer))
    splits = KeySplits(
        empty(NUM_PIECES, 3, dtype=torch.int32), empty(NUM_ROWS + 1, dtype=torch.int32)
    )
    scratch = DecodeScratch.of(NUM_PIECES, layer.num_heads, layer.head_dim, NOWHERE)
    name = " ".join([*map(str, heads), *kind, f"{dtype} over {kv_dtype}"])
    yield Case(
        f"decode {name}",
        lambda: decode_attention(
            q, pool, pool, table, seq_lens, layer, splits, scratch, torch.empty_like(q)
        ),
    )
    yield Case(
        f"extend {name}",
        lambda: extend_attention(q, pool, pool, table, blocks, layer, torch.empty_like(q)),
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


def sampling(vocab_size: int) -> Iterator[Case]:
    logits = empty(NUM_ROWS, vocab_size, dtype=F32)
    floats, integers = empty(NUM_ROWS, dtype=F32), empty(NUM_ROWS, dtype=torch.int64)
    yield Case(
        f"draw of {vocab_size}",
        lambda: sampling_kernels.draw(logits, floats, floats, integers, integers),
    )
    yield Case(
        f"thresholds of {vocab_size}",
        lambda: find_kept_thresholds(logits, floats, integers, floats, floats, integers, floats),
    )


def pages() -> Iterator[Case]:
    table, starts = empty(NUM_ROWS, MAX_PAGES, dtype=torch.int32), empty(7, dtype=torch.int32)
    rows, listed = empty(NUM_ROWS, dtype=torch.int64), empty(NUM_PAGES, dtype=torch.int32)
    yield Case("pages", lambda: list_pages(table, rows, starts, MAX_PAGES, listed))


def _pool(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return empty(NUM_PAGES, PAGE_SIZE, num_kv_heads, head_dim, dtype=dtype)


def _compile_only() -> None:
    def compile_in_place(kernel: JITFunction[Any], grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            compiled = kernel.run(*args, grid=grid, warmup=True, **named)
            assert compiled.metadata.shared <= SHARED_BYTES, compiled.metadata

        return launch

    triton.runtime.driver.set_active(NoDriver())
    JITFunction.__getitem__ = compile_in_place


def main(argv: list[str]) -> None:
    _compile_only()
    for case in all_cases() if argv == ["all"] else chosen():
        begin = time.monotonic()
        case.launch()
        sys.stdout.write(f"{time.monotonic() - begin:6.2f} s {case.name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
