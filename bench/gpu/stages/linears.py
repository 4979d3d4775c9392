"""The decoder's matrix products: bytes of weights a second, by library and by our kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from bench.gpu.rig import Rig
from bench.gpu.shapes import SHAPES
from bench.gpu.stopwatch import device_seconds

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of rows, and a weight
MAX_WEIGHTS = 64
SKINNY = "skinny"
MAX_SKINNY_ROWS = 16


@torch.inference_mode()
def run(rig: Rig) -> None:
    for what, (size, width) in _linears(rig.task.model).items():
        num_bytes = size * width * rig.dtype.itemsize
        weights = [
            torch.empty(size, width, dtype=rig.dtype, device=rig.torch_device).normal_()
            for _ in range(max(1, min(MAX_WEIGHTS, rig.sizes.cold_bytes // num_bytes)))
        ]
        products = _products(rig, weights[0])
        for num_rows in rig.sizes.linear_rows:
            x = torch.empty(num_rows, width, dtype=rig.dtype, device=rig.torch_device).normal_()
            for by, product in products.items():
                if by.startswith(SKINNY) and num_rows > MAX_SKINNY_ROWS:
                    continue

                def work(x: torch.Tensor = x, product: Product = product) -> None:
                    for weight in weights:  # noqa: B023 - called before the next ones are made
                        product(x, weight)

                captured = rig.device.capture(work)
                seconds = device_seconds(captured, rig.sizes.num_rounds) / len(weights)
                rig.tell(
                    {
                        "model": rig.task.model,
                        "what": what,
                        "by": by,
                        "rows": num_rows,
                        "us": seconds * 1e6,
                        "gb_per_s": num_bytes / seconds / 1e9,
                        "share": num_bytes / seconds / rig.ceilings.bytes_per_s,
                    }
                )


def _products(rig: Rig, weight: torch.Tensor) -> dict[str, Product]:
    products: dict[str, Product] = {"library": functional.linear}
    if rig.has_triton:
        from worker.engine.cuda.kernels.fixed_linear import fixed_linear

        products["deterministic"] = lambda x, weight: fixed_linear(x, weight, None)
        products |= _skinny_products(rig, weight)
    return products


def _skinny_products(rig: Rig, weight: torch.Tensor) -> dict[str, Product]:
    """By outputs and inputs of a program at a time, and programs that share a block of outputs."""
    from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, SkinnyTiles, skinny_linear
    from worker.engine.cuda.layers.linear_trial import candidates

    def product(tiles: SkinnyTiles) -> Product:
        scratch = SkinnyScratch.of(len(weight), tiles, weight.device)
        return lambda x, weight: skinny_linear(x, weight, None, tiles, scratch)

    return {
        f"{SKINNY} {'x'.join(map(str, tiles))}": product(tiles)
        for tiles in candidates(weight.shape, rig.device.num_processors)
    }


def _linears(model: str) -> dict[str, tuple[int, int]]:
    """Output and input features."""
    shape = SHAPES[model]
    hidden, size, head_dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    num_heads, num_kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    return {
        "qkv": (head_dim * (num_heads + 2 * num_kv_heads), hidden),
        "output": (hidden, head_dim * num_heads),
        "gate_up": (2 * size, hidden),
        "down": (hidden, size),
        "head": (shape["vocab_size"], hidden),
    }
