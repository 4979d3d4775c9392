"""Draws tokens on the GPU with the noise of `CounterHash`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.sampling.counter_hash import SAMPLING_DOMAIN
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE

BLOCK = 4096


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
    drawn = torch.empty(num_rows, dtype=torch.int64, device=device)
    _best_kernel[(num_rows,)](
        noisy,
        largest,
        token_ids,
        drawn,
        num_blocks,
        BLOCKS=triton.next_power_of_2(num_blocks),
        NOT_A_NUMBER=NOT_A_NUMBER,
        NOTHING_ALLOWED=NOTHING_ALLOWED,
        num_warps=1,
    )
    return drawn


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
def gumbel(hashes):
    """As `gumbel_of`, to the last bits, without its double precision: many GPUs have 1/64 of that.

    u = (hash + 0.5) / 2**32, or from 1/2 on v = 1 - u in its place, which keeps its bits where u is
    rounded to 1; -log(1 - v) is then log(w) v / (1 - w) of the rounded w = 1 - v, whose own error
    cancels out (Kahan's log1p).
    """
    is_high = hashes >= tl.full([], 0x80000000, tl.uint32)
    number = tl.where(is_high, hashes ^ tl.full([], 0xFFFFFFFF, tl.uint32), hashes)
    part = (number.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - part
    taken = 1.0 - rest  # exact
    is_tiny = taken == 0.0
    of_rest = tl.where(
        is_tiny, part, -tl.log(rest) * tl.div_rn(part, tl.where(is_tiny, 1.0, taken))
    )
    return -tl.log(tl.where(is_high, of_rest, -tl.log(part)))


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
        scaled = tl.div_rn(logits, temperature)  # as kept_thresholds.py does
        is_kept = (scaled >= tl.load(thresholds_ptr + row)) & mask
        noisy = tl.full([BLOCK], float("-inf"), tl.float32)
        if tl.max(is_kept.to(tl.int32), axis=0) > 0:  # of most blocks nothing is, where a few are
            seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
            hashes = counter_hash(seed, position, token_ids.to(tl.uint32), DOMAIN)
            noisy = tl.where(is_kept, scaled + gumbel(hashes), float("-inf"))
    best = tl.max(noisy, axis=0)
    winner = tl.min(tl.where(noisy == best, token_ids, vocab_size - 1), axis=0)
    place = row * tl.num_programs(1) + block
    tl.store(noisy_ptr + place, best)
    tl.store(largest_ptr + place, largest)
    tl.store(token_ids_ptr + place, winner.to(tl.int64))


@triton.jit
def _best_kernel(
    noisy_ptr,
    largest_ptr,
    token_ids_ptr,
    drawn_ptr,
    num_blocks,
    BLOCKS: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
    NOTHING_ALLOWED: tl.constexpr,
):
    """Finds the first of a row's best blocks."""
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS)
    is_block = blocks < num_blocks
    places = row * num_blocks + blocks
    noisy = tl.load(noisy_ptr + places, mask=is_block, other=float("-inf"))
    largest = tl.load(largest_ptr + places, mask=is_block, other=float("-inf"))
    winner = tl.min(tl.where(noisy == tl.max(noisy, axis=0), blocks, num_blocks - 1), axis=0)
    drawn = tl.load(token_ids_ptr + row * num_blocks + winner)
    if tl.max(largest, axis=0) == float("-inf"):
        drawn = tl.full([], NOTHING_ALLOWED, tl.int64)
    is_finite = (largest == largest) & (largest < float("inf"))
    if tl.min(is_finite.to(tl.int32), axis=0) == 0:
        drawn = tl.full([], NOT_A_NUMBER, tl.int64)
    tl.store(drawn_ptr + row, drawn)
