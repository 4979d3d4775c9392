"""What a product with weights of 16, 8 and 4 bits costs in our C++, beside nothing else.

    python -m bench.products [--rows 1 4 16 64] [--shape 32000 2048] [--rounds 5] [--kernels avx2]

By the kernel sets that are named, else by the best that the processor has; weights of integers also
with inputs in 8 bits. Each line is the median of the rounds, the kinds taking turns in each:
milliseconds, those of the processor's time, and the gigabytes of weights, scales among them, read
in a second.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections import defaultdict

import torch

from shared.gguf.tensor_types import TENSOR_TYPES
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.formats.stored.gguf_blocks import weight_of_blocks
from worker.engine.models.decoder_weights import Projection
from worker.engine.native.kernel_set import AVX512_BF16, NAMED_KERNEL_SETS, KernelSet
from worker.engine.native.native_choice import ROUNDED_INPUTS, missing_capability
from worker.engine.native.native_library import NativeLibrary, ShapeStruct
from worker.engine.native.packed_weights import PackedWeights

CALLS = 3  # a round


class Product:
    """A decoder that is nothing but a head, which multiplies rows with one weight."""

    def __init__(
        self,
        weight: torch.Tensor | ScaledWeight,
        num_threads: int,
        kernel_set: KernelSet = AVX512_BF16,
        inputs: InputCodes | None = None,
    ) -> None:
        self._library = NativeLibrary.load(kernel_set)
        self._packed = PackedWeights(self._library, inputs=inputs)  # owns what the head points to
        self._out_features, in_features = weight.shape
        head = self._packed.linear(Projection(weight, None))
        shape = ShapeStruct(hidden_size=in_features, norm_eps=1e-5, lm_head=head)
        self._decoder = self._library.decoder_new(ctypes.byref(shape), None, 0, num_threads)

    @property
    def num_bytes(self) -> int:
        return self._packed.num_bytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[num_rows, in_features] -> [num_rows, out_features], both float32."""
        rows = rows.contiguous()
        products = torch.empty(len(rows), self._out_features)
        self._library.logits(self._decoder, rows.data_ptr(), len(rows), products.data_ptr())
        return products


def integers(num_bits: int, shape: tuple[int, int], group: int) -> ScaledWeight:
    half = 1 << (num_bits - 1)
    codes = torch.randint(-half, half, shape, dtype=torch.int8)
    scales = torch.rand(shape[0], -(-shape[1] // group)) * 0.01
    return ScaledWeight(codes, scales, 1, group)


def gguf_blocks(kind: str, shape: tuple[int, int]) -> ScaledWeight:
    """Of bytes that give finite halves."""
    (tensor_type,) = (each for each in TENSOR_TYPES.values() if each.name == kind)
    row_bytes = shape[1] // tensor_type.block_size * tensor_type.block_bytes
    return weight_of_blocks(kind, torch.randint(0, 60, (shape[0], row_bytes), dtype=torch.uint8))


def weights(shape: tuple[int, int]) -> dict[str, torch.Tensor | ScaledWeight]:
    return {
        "bfloat16": torch.randn(shape).to(torch.bfloat16),
        "int8 by channel": integers(8, shape, shape[1]),
        "int8 in groups of 32": integers(8, shape, 32),
        "int4 in groups of 128": integers(4, shape, 128),
        "int4 in groups of 32": integers(4, shape, 32),
        **{kind: gguf_blocks(kind, shape) for kind in ("Q8_0", "Q4_0", "Q4_K", "Q6_K")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--shape", type=int, nargs=2, default=[32000, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", nargs="+", choices=[each.name for each in NAMED_KERNEL_SETS])
    args = parser.parse_args()
    best = next(each.name for each in NAMED_KERNEL_SETS if not missing_capability(each))
    kernel_sets = [each for each in NAMED_KERNEL_SETS if each.name in (args.kernels or [best])]
    torch.manual_seed(0)
    shape = (args.shape[0], args.shape[1])
    products = {
        f"{kernel_set.name}, {name}{told}": Product(
            weight, torch.get_num_threads(), kernel_set, inputs
        )
        for name, weight in weights(shape).items()
        for kernel_set in kernel_sets
        for told, inputs in (("", None), (", int8 inputs", InputCodes(ROUNDED_INPUTS)))
        if inputs is None or isinstance(weight, ScaledWeight)
    }
    for num_rows in args.rows:
        rows = torch.randn(num_rows, shape[1])
        seconds, of_processor = defaultdict[str, list[float]](list), defaultdict[str, float](float)
        for _ in range(args.rounds):
            for name, product in products.items():
                start, start_of_processor = time.perf_counter(), time.process_time()
                for _ in range(CALLS):
                    product(rows)
                seconds[name].append((time.perf_counter() - start) / CALLS)
                of_processor[name] += (time.process_time() - start_of_processor) / CALLS
        print(f"{num_rows} rows")
        for name, taken in seconds.items():
            median = statistics.median(taken)
            rate = products[name].num_bytes / median / 1e9
            spent = of_processor[name] / args.rounds * 1e3
            print(f"  {name:48} {median * 1e3:7.2f} ms  {spent:7.2f} ms CPU  {rate:5.1f} GB/s")


if __name__ == "__main__":
    main()
