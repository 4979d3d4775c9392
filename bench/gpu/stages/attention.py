"""Attention alone, by one backend: bytes of keys and values a second, products a second."""

from __future__ import annotations

import itertools
import statistics
import time

import torch

from bench.gpu.attention_case import AttentionCase
from bench.gpu.backends import BACKENDS
from bench.gpu.rig import Rig
from bench.gpu.stopwatch import device_seconds
from worker.engine.layers.attention_backend import AttentionLayer

MAX_LAYERS = 64
NUM_KV_HEADS, HEAD_DIM = 8, 128


@torch.inference_mode()
def run(rig: Rig) -> None:
    sizes, backend = rig.sizes, BACKENDS[rig.backend]
    layers = [_layer(num_heads) for num_heads in ((16, 32) if rig.is_gpu else (16,))]
    if backend.decode is not None:
        for cell in itertools.product(layers, sizes.attention_rows, sizes.attention_lens):
            _decode(rig, *cell)
    if backend.prefill is not None:
        for layer, length in itertools.product(layers, sizes.prompt_lens):
            _prefill(rig, layer, length)


def _layer(num_heads: int) -> AttentionLayer:
    return AttentionLayer(num_heads, NUM_KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)


def _decode(rig: Rig, layer: AttentionLayer, num_rows: int, length: int) -> None:
    """In a CUDA graph, over as many layers as the caches do not hold."""
    bytes_per_layer = 2 * num_rows * length * NUM_KV_HEADS * HEAD_DIM * rig.dtype.itemsize
    case = AttentionCase.make(
        layer,
        [length] * num_rows,
        [1] * num_rows,
        page_size=rig.page_size,
        dtype=rig.dtype,
        device=rig.torch_device,
        num_layers=max(1, min(MAX_LAYERS, rig.sizes.cold_bytes // bytes_per_layer)),
        in_graph=True,
    )
    attention = case.attention(rig.backend, rig.device)
    plans_s = []
    for _ in range(rig.sizes.num_rounds):
        begin = time.perf_counter()
        attention.plan(case.rows)
        plans_s.append(time.perf_counter() - begin)
        rig.device.mark().wait()

    def work() -> None:
        attention.begin(case.batch)
        for layer_id in range(len(case.layers)):
            attention.forward(case.q, case.k, case.v, layer_id)

    seconds = device_seconds(rig.device.capture(work), rig.sizes.num_rounds)
    rig.tell(
        {
            "what": "decode",
            "backend": rig.backend,
            "heads": f"{layer.num_heads}/{layer.num_kv_heads}",
            "rows": num_rows,
            "context": length,
            "us": seconds / len(case.layers) * 1e6,
            "gb_per_s": case.num_bytes / seconds / 1e9,
            "share": case.num_bytes / seconds / rig.ceilings.bytes_per_s,
            "plan_us": statistics.median(plans_s) * 1e6,
        }
    )


def _prefill(rig: Rig, layer: AttentionLayer, length: int) -> None:
    case = AttentionCase.make(
        layer,
        [length],
        [length],
        page_size=rig.page_size,
        dtype=rig.dtype,
        device=rig.torch_device,
    )
    attention = case.attention(rig.backend, rig.device)
    attention.plan(case.rows)
    attention.begin(case.batch)
    # In a graph, too: a short one would take as long as its launches.
    captured = rig.device.capture(lambda: attention.forward(case.q, case.k, case.v, 0))
    seconds = device_seconds(captured, rig.sizes.num_rounds)
    flops = 2 * layer.num_heads * layer.head_dim * length * (length + 1)
    rig.tell(
        {
            "what": "prefill",
            "backend": rig.backend,
            "heads": f"{layer.num_heads}/{layer.num_kv_heads}",
            "tokens": length,
            "us": seconds * 1e6,
            "tflops_per_s": flops / seconds / 1e12,
            "share": flops / seconds / rig.ceilings.flops_per_s,
        }
    )
