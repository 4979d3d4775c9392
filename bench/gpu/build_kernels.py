"""Compiles flashinfer's attention kernels, all at once: `python -m bench.gpu.build_kernels`.

Else each is compiled when it is first used, one after the other. Each has a ninja of its own, as
flashinfer itself has when it uses one: what a common ninja has compiled, that one compiles again.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.gpu.backends import GROUPS, HEAD_DIM, PAGE_SIZE

FREE_CORES = 2  # for the stages that run meanwhile


def main() -> None:
    """Prints for how long it has compiled."""
    from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module
    from flashinfer.jit.attention.modules import _gen_batch_prefill_primary_module
    from flashinfer.jit.xqa import gen_xqa_module

    half, ints, dims = torch.bfloat16, torch.int32, (HEAD_DIM, HEAD_DIM)
    kind = (half, half, half, ints, *dims, 0, False, False)  # no positions, window or soft cap
    begin = time.monotonic()
    modules = [
        gen_batch_prefill_module("fa3", *kind, False),
        # For keys and values of the same strides: the one that flashinfer's wrappers take.
        _gen_batch_prefill_primary_module("fa2", *kind, False),
        gen_batch_decode_module(*kind),
        *(
            gen_xqa_module(half, half, PAGE_SIZE, HEAD_DIM, group, False, half, 1)
            for group in GROUPS
        ),
    ]
    missing = [module for module in modules if not module.is_aot]
    cores = max(1, (os.cpu_count() or 1) - FREE_CORES)
    os.environ.setdefault("MAX_JOBS", str(max(1, cores // max(1, len(missing) - 2))))
    with ThreadPoolExecutor(len(modules)) as pool:
        list(pool.map(_build, missing))
    sys.stdout.write(f"{time.monotonic() - begin:.1f}\n")


def _build(module: Any) -> None:
    module.build(verbose=False)


if __name__ == "__main__":
    main()
