"""Draws tokens on the GPU with the noise of `CounterHash`, and finds the logits that are kept."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.sampling.counter_hash import SAMPLING_DOMAIN
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE

BLOCK = 4096
THRESHOLD_BLOCK = 8192


def draw(
    logits: torch.Tensor,  # [num_rows, vocab_size] float32
    temperatures: torch.Tensor,  # [num_rows] float32; up to GREEDY_TEMPERATURE: the largest
    thresholds: torch.Tensor,  # [num_rows] float32, of logits / temperature; -inf: all are kept
    seeds: torch.Tensor,  # [num_rows] int64
    positions: torch.Tensor,  # [num_rows] int64, of the token to be drawn
) -> torch.Tensor:
    """[num_rows] int64: token ids, NOT_A_NUMBER or NOTHING_ALLOWED. Of equals the lowest id."""
    num_rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, BLOCK)
    device = logits.device
    noisy = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    largest = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    token_ids = torch.empty(num_rows, num_blocks, dtype=torch.int64, device=device)
    _draw_kernel[(num_rows, num_blocks)](
        logits,
        temperatures,
        thresholds,
        seeds,
        positions,
        noisy,
        largest,
        token_ids,
        vocab_size,
        DOMAIN=SAMPLING_DOMAIN,
        GREEDY=GREEDY_TEMPERATURE,
        BLOCK=BLOCK,
        num_warps=8,
    )
    best = noisy.argmax(dim=1, keepdim=True)
    chosen = token_ids.gather(1, best).squeeze(1)
    top = largest.amax(dim=1)
    chosen = torch.where(top == -torch.inf, NOTHING_ALLOWED, chosen)
    return torch.where(top.isnan() | (top == torch.inf), NOT_A_NUMBER, chosen)


def kept_thresholds(
    logits: torch.Tensor,  # [num_rows, vocab_size] float32
    temperatures: torch.Tensor,  # [num_rows] float32, above GREEDY_TEMPERATURE
    top_k: torch.Tensor,  # [num_rows] int64, 0 is off
    top_p: torch.Tensor,  # [num_rows] float32
    min_p: torch.Tensor,  # [num_rows] float32
) -> torch.Tensor:
    """[num_rows] float32: the least logit / temperature that is kept, as `kept_threshold` says."""
    num_rows, vocab_size = logits.shape
    thresholds = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    _threshold_kernel[(num_rows,)](
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        thresholds,
        vocab_size,
        BLOCK=min(THRESHOLD_BLOCK, triton.next_power_of_2(vocab_size)),
        num_warps=16,
    )
    return thresholds


@triton.jit
def _mix(word):
    word = word * tl.full([], 0xCC9E2D51, tl.uint32)
    word = (word << 15) | (word >> 17)
    return word * tl.full([], 0x1B873593, tl.uint32)


@triton.jit
def _absorb(state, word):
    state = state ^ _mix(word)
    state = (state << 13) | (state >> 19)
    return state * tl.full([], 5, tl.uint32) + tl.full([], 0xE6546B64, tl.uint32)


@triton.jit
def counter_hash(seed, position, token_ids, DOMAIN: tl.constexpr):
    """MurmurHash3 of five words, as counter_hash.py says: the same bits. `token_ids` uint32."""
    state = _absorb(tl.full([], 0, tl.uint32), (seed & 0xFFFFFFFF).to(tl.uint32))
    state = _absorb(state, ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32))
    state = _absorb(state, (position & 0xFFFFFFFF).to(tl.uint32))
    hashes = _absorb(state, token_ids)
    hashes = _absorb(hashes, tl.full([], DOMAIN, tl.uint32))
    hashes = hashes ^ tl.full([], 20, tl.uint32)
    hashes = hashes ^ (hashes >> 16)
    hashes = hashes * tl.full([], 0x85EBCA6B, tl.uint32)
    hashes = hashes ^ (hashes >> 13)
    hashes = hashes * tl.full([], 0xC2B2AE35, tl.uint32)
    return hashes ^ (hashes >> 16)


@triton.jit
def _draw_kernel(
    logits_ptr,
    temperatures_ptr,
    thresholds_ptr,
    seeds_ptr,
    positions_ptr,
    noisy_ptr,
    largest_ptr,
    token_ids_ptr,
    vocab_size,
    DOMAIN: tl.constexpr,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    token_ids = block * BLOCK + tl.arange(0, BLOCK)
    mask = token_ids < vocab_size
    logits = tl.load(
        logits_ptr + row.to(tl.int64) * vocab_size + token_ids, mask=mask, other=float("-inf")
    )
    has_nan = tl.max((logits != logits).to(tl.int32), axis=0) > 0
    largest = tl.where(has_nan, float("nan"), tl.max(logits, axis=0))
    temperature = tl.load(temperatures_ptr + row)
    noisy = logits
    if temperature > GREEDY:
        scaled = logits / temperature
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        hashes = counter_hash(seed, position, token_ids.to(tl.uint32), DOMAIN)
        # In double precision: near 1 the inner logarithm would be rounded to zero.
        uniform = (hashes.to(tl.float64) + 0.5) * 2.3283064365386963e-10
        gumbel = -tl.log((-tl.log(uniform)).to(tl.float32))
        is_kept = scaled >= tl.load(thresholds_ptr + row)
        noisy = tl.where(is_kept & mask, scaled + gumbel, float("-inf"))
    best = tl.max(noisy, axis=0)
    winner = tl.min(tl.where(noisy == best, token_ids, vocab_size - 1), axis=0)
    place = row * tl.num_programs(1) + block
    tl.store(noisy_ptr + place, best)
    tl.store(largest_ptr + place, largest)
    tl.store(token_ids_ptr + place, winner.to(tl.int64))


@triton.jit
def _ordered(values):
    """Integers in the order of the floats: int32 -> int32, of -inf to inf."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _unordered(keys):
    bits = tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _threshold_kernel(
    logits_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    thresholds_ptr,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Bisects the ordered bits of a float: the threshold is exact after 32 halvings."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    source = logits_ptr + row.to(tl.int64) * vocab_size
    largest = float("-inf")
    for start in range(0, vocab_size, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(source + cols, mask=cols < vocab_size, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(values / temperature, axis=0))
    threshold = float("-inf")
    if min_p > 0:
        threshold = largest + tl.log(min_p)
    if (top_k > 0) & (top_k < vocab_size):
        low, high = _ordered(tl.full([], float("-inf"), tl.float32)), _ordered(largest)
        for _ in range(32):  # the largest key with at least top_k values not below it
            middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
            bound = _unordered(middle)
            count = tl.zeros([], tl.int64)
            for start in range(0, vocab_size, BLOCK):
                cols = start + tl.arange(0, BLOCK)
                values = tl.load(source + cols, mask=cols < vocab_size, other=float("-inf"))
                is_kept = (values / temperature >= bound) & (cols < vocab_size)
                count += tl.sum(is_kept.to(tl.int64), axis=0)
            low = tl.where(count >= top_k, middle, low)
            high = tl.where(count >= top_k, high, middle - 1)
        threshold = tl.maximum(threshold, _unordered(low))
    if top_p < 1:
        least = tl.minimum(threshold, largest)
        wanted = 0.0
        for start in range(0, vocab_size, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            values = tl.load(source + cols, mask=cols < vocab_size, other=float("-inf"))
            values = values / temperature
            is_kept = (values >= least) & (cols < vocab_size)
            wanted += tl.sum(tl.where(is_kept, tl.exp(values - largest), 0.0), axis=0)
        wanted *= top_p
        low, high = _ordered(least), _ordered(largest)
        for _ in range(32):  # the largest key above which, and at which, enough mass lies
            middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
            bound = _unordered(middle)
            mass = 0.0
            for start in range(0, vocab_size, BLOCK):
                cols = start + tl.arange(0, BLOCK)
                values = tl.load(source + cols, mask=cols < vocab_size, other=float("-inf"))
                values = values / temperature
                is_kept = (values >= bound) & (cols < vocab_size)
                mass += tl.sum(tl.where(is_kept, tl.exp(values - largest), 0.0), axis=0)
            low = tl.where(mass >= wanted, middle, low)
            high = tl.where(mass >= wanted, high, middle - 1)
        threshold = tl.maximum(threshold, _unordered(low))
    tl.store(thresholds_ptr + row, tl.minimum(threshold, largest))
