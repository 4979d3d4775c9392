"""Hash and noise inside the drawing kernel, alone. Imported only where triton is installed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kernels.sampling_kernels import counter_hash, gumbel
from worker.engine.sampling.counter_hash import SAMPLING_DOMAIN


def hash_ids(seed: int, position: int, num_ids: int, device: torch.device) -> list[int]:
    """Of the ids from 0 on; `num_ids` is a power of two."""
    words = torch.tensor([seed, position], device=device)
    hashes = torch.zeros(num_ids, dtype=torch.int64, device=device)
    _kernel[(1,)](words, hashes, num_ids=num_ids, domain=SAMPLING_DOMAIN)
    found: list[int] = hashes.tolist()
    return found


@triton.jit
def _kernel(words_ptr, hashes_ptr, num_ids: tl.constexpr, domain: tl.constexpr):
    ids = tl.arange(0, num_ids)
    seed, position = tl.load(words_ptr), tl.load(words_ptr + 1)
    hashes = counter_hash(seed, position, ids.to(tl.uint32), domain)
    tl.store(hashes_ptr + ids, hashes.to(tl.int64))


def noise_of(hashes: torch.Tensor) -> torch.Tensor:
    """`hashes` int64, as many as a power of two."""
    noise = torch.empty(len(hashes), device=hashes.device)
    _noise_kernel[(1,)](hashes, noise, num_hashes=len(hashes))
    return noise


@triton.jit
def _noise_kernel(hashes_ptr, noise_ptr, num_hashes: tl.constexpr):
    places = tl.arange(0, num_hashes)
    hashes = tl.load(hashes_ptr + places).to(tl.uint32)
    tl.store(noise_ptr + places, gumbel(hashes))
