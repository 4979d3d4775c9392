"""The least time that a workload takes on this machine, by what memory and cores can do.

Two ceilings are measured, each as the best of several tries on the threads that the engines get:
  - read_bytes_per_s: the sum over a tensor that is far larger than the caches;
  - flops_per_s: a bfloat16 matrix product of 2048 and more rows through torch's linear.

A workload's time is that of its prefill and of its decode steps. Each of them takes

    max(bytes / read_bytes_per_s, operations / flops_per_s)

  prefill  bytes: all weights once. Operations: 2 per weight of the layers and prompt token (shared
           tokens count once: the prefix cache is ideal), 2 per weight of the head and request,
           and attention over each token's own past.
  step     bytes: all weights, and keys and values of all requests at their mean length.
           Operations: 2 per weight and request, and attention over the mean length.

`python -m bench.roofline` prints the ceilings.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import cyclopts

from bench.model_shape import ModelShape
from bench.workloads import Workload

NUM_TRIES = 8
READ_BYTES = 1 << 30
GEMM_SHAPES = ((2048, 576, 3072), (2048, 2048, 2048), (4096, 2048, 4096))  # rows, in, out


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What memory and cores do at most."""

    read_bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(cls, num_threads: int, dtype: str) -> Ceilings:
        """In a process of its own, which leaves no threads behind."""
        command = [sys.executable, "-m", "bench.roofline", "--json-only"]
        command += ["--num-threads", str(num_threads), "--dtype", dtype]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return cls(**json.loads(done.stdout))

    def bound_s(self, num_bytes: float, num_flops: float) -> float:
        return max(num_bytes / self.read_bytes_per_s, num_flops / self.flops_per_s)


def roofline_s(
    workload: Workload, shape: ModelShape, ceilings: Ceilings, bytes_per_value: float
) -> float:
    """Seconds of a whole workload, as the module's docstring says."""
    weight_bytes = shape.num_parameters * bytes_per_value
    num_requests, prompt_len = workload.num_requests, workload.prompt_len
    num_prefilled = workload.shared_len + num_requests * workload.own_len
    num_pairs = _num_pairs(0, workload.shared_len) + num_requests * _num_pairs(
        workload.shared_len, workload.own_len
    )
    prefill_s = ceilings.bound_s(
        weight_bytes,
        2 * num_prefilled * shape.num_layer_parameters
        + 2 * num_requests * shape.num_head_parameters
        + num_pairs * shape.attention_flops,
    )
    mean_len = prompt_len + workload.output_len / 2
    step_s = ceilings.bound_s(
        weight_bytes + num_requests * mean_len * shape.num_kv_values * max(2.0, bytes_per_value),
        num_requests * (2 * shape.num_parameters + mean_len * shape.attention_flops),
    )
    return prefill_s + (workload.output_len - 1) * step_s


def _num_pairs(past_len: int, num_new: int) -> float:
    """Query rows times the keys that each sees."""
    return num_new * past_len + num_new * (num_new + 1) / 2


def measure_ceilings(num_threads: int, dtype_name: str) -> Ceilings:
    import torch

    torch.set_num_threads(num_threads)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype_name]
    values = torch.ones(READ_BYTES // 4)
    read_s = _best_s(lambda: values.sum())
    best_flops = 0.0
    with torch.inference_mode():
        for rows, num_in, num_out in GEMM_SHAPES:
            x = torch.randn(rows, num_in).to(dtype)
            weight = torch.randn(num_out, num_in).to(dtype)
            gemm_s = _best_s(functools.partial(torch.nn.functional.linear, x, weight))
            best_flops = max(best_flops, 2 * rows * num_in * num_out / gemm_s)
    return Ceilings(READ_BYTES / read_s, best_flops)


def _best_s(call: Callable[[], object]) -> float:
    call()
    best_s = float("inf")
    for _ in range(NUM_TRIES):
        begin = time.perf_counter()
        call()
        best_s = min(best_s, time.perf_counter() - begin)
    return best_s


def main(*, num_threads: int = 2, dtype: str = "bfloat16", json_only: bool = False) -> None:
    """Measure what memory and cores of this machine do at most."""
    ceilings = measure_ceilings(num_threads, dtype)
    if json_only:
        print(json.dumps(asdict(ceilings)))
        return
    print(f"read {ceilings.read_bytes_per_s / 1e9:.1f} GB/s, {num_threads} threads")
    print(f"{dtype} GEMM {ceilings.flops_per_s / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    cyclopts.run(main)
