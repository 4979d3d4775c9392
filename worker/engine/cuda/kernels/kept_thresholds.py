"""Which logits are kept by min_p, top_k and top_p, found on the GPU: `kept_threshold` by kernels.

The programs of a row read its logits twice, and those of blocks with candidates once more. What may
be kept is found by counting in bins below the largest logit: what is below the last bin that top_k
and min_p reach, or so far below that all of it has less mass than top_p leaves out, is not looked
at again. One program then bisects the candidates, most often some hundreds.

Sums are made in one order, whatever runs beside: a row's threshold depends on its logits alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE

BLOCK = 8192  # logits for a program
NUM_BINS = 64  # the last one has all that is further below
BINS_PER_NAT = 2
CANDIDATES = 2048  # that the bisecting program reads at a time
NUM_WAYS = 16  # bounds that are tried at once
# So near to 1 sums in float32 do not tell the mass that is left out from rounding.
MAX_TOP_P = 0.9999


def find_kept_thresholds(
    logits: torch.Tensor,  # [num_rows, vocab_size] float32
    temperatures: torch.Tensor,  # [num_rows] float32
    top_k: torch.Tensor,  # [num_rows] int64, 0 is off
    top_p: torch.Tensor,  # [num_rows] float32
    min_p: torch.Tensor,  # [num_rows] float32
) -> torch.Tensor:
    """[num_rows] float32: the least logit / temperature that is kept, as `kept_threshold` says.

    -inf of rows that draw from all, or draw nothing: their programs end at once.
    """
    num_rows, vocab_size = logits.shape
    block = min(BLOCK, triton.next_power_of_2(vocab_size))
    num_blocks = triton.cdiv(vocab_size, block)
    device, grid = logits.device, (num_rows, num_blocks)
    thresholds = torch.empty(num_rows, dtype=torch.float32, device=device)
    largest = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    mass = torch.empty_like(largest)
    counts = torch.empty(num_rows, num_blocks, NUM_BINS, dtype=torch.int32, device=device)
    # [num_rows, vocab_size], the first of each row
    candidates = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=device)
    num_candidates = torch.empty(num_rows, dtype=torch.int32, device=device)
    limits = (temperatures, top_k, top_p, min_p)
    sizes = {"BLOCK": block, "BLOCKS": triton.next_power_of_2(num_blocks)}
    bins = {"BINS": NUM_BINS, "BINS_PER_NAT": BINS_PER_NAT}
    greedy = {"GREEDY": GREEDY_TEMPERATURE}
    _mass_kernel[grid](
        logits, *limits, largest, mass, vocab_size, BLOCK=block, **greedy, num_warps=8
    )
    _bins_kernel[grid](
        logits,
        *limits,
        largest,
        counts,
        vocab_size,
        num_blocks,
        **sizes,
        **bins,
        **greedy,
        num_warps=8,
    )
    _candidates_kernel[grid](
        logits,
        *limits,
        largest,
        mass,
        counts,
        candidates,
        num_candidates,
        vocab_size,
        num_blocks,
        MAX_TOP_P=MAX_TOP_P,
        **sizes,
        **bins,
        **greedy,
        num_warps=8,
    )
    _bisect_kernel[(num_rows,)](
        candidates,
        num_candidates,
        *limits,
        largest,
        mass,
        thresholds,
        vocab_size,
        num_blocks,
        BLOCKS=sizes["BLOCKS"],
        CANDIDATES=CANDIDATES,
        WAYS=NUM_WAYS,
        **greedy,
        num_warps=8,
    )
    return thresholds


@triton.jit
def _keeps_all(temperatures_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, GREEDY: tl.constexpr):
    """Or draws nothing."""
    limits = (tl.load(top_k_ptr + row) > 0) | (tl.load(top_p_ptr + row) < 1)
    limits = limits | (tl.load(min_p_ptr + row) > 0)
    return (tl.load(temperatures_ptr + row) <= GREEDY) | (limits == 0)


@triton.jit
def _load_scaled(logits_ptr, temperatures_ptr, row, cols, vocab_size):
    """-inf behind the last one. Divided as on a CPU, to the last bit."""
    source = logits_ptr + row.to(tl.int64) * vocab_size
    values = tl.load(source + cols, mask=cols < vocab_size, other=float("-inf"))
    return tl.div_rn(values, tl.load(temperatures_ptr + row))


@triton.jit
def _bin_of(values, largest, BINS: tl.constexpr, BINS_PER_NAT: tl.constexpr):
    """int32: the first one has the largest. Of what is no number it is the last."""
    below = (largest - values) * BINS_PER_NAT
    return tl.where(below < BINS - 1, below, BINS - 1.0).to(tl.int32)


@triton.jit
def _row_largest(largest_ptr, row, num_blocks, BLOCKS: tl.constexpr):
    idx = tl.arange(0, BLOCKS)
    of_blocks = tl.load(
        largest_ptr + row * num_blocks + idx, mask=idx < num_blocks, other=float("-inf")
    )
    return tl.max(of_blocks, axis=0)


@triton.jit
def _row_mass(largest_ptr, mass_ptr, row, num_blocks, BLOCKS: tl.constexpr):
    """The sum of exp(logit - the row's largest)."""
    idx = tl.arange(0, BLOCKS)
    is_block = idx < num_blocks
    of_blocks = tl.load(largest_ptr + row * num_blocks + idx, mask=is_block, other=float("-inf"))
    masses = tl.load(mass_ptr + row * num_blocks + idx, mask=is_block, other=0.0)
    weights = tl.where(masses > 0, tl.exp(of_blocks - tl.max(of_blocks, axis=0)), 0.0)
    return tl.sum(masses * weights, axis=0)


@triton.jit
def _mass_kernel(
    logits_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    largest_ptr,
    mass_ptr,
    vocab_size,
    BLOCK: tl.constexpr,
    GREEDY: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    if _keeps_all(temperatures_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, GREEDY):
        return
    cols = block * BLOCK + tl.arange(0, BLOCK)
    values = _load_scaled(logits_ptr, temperatures_ptr, row, cols, vocab_size)
    largest = tl.max(values, axis=0)
    weights = tl.where(values > float("-inf"), tl.exp(values - largest), 0.0)
    place = row * tl.num_programs(1) + block
    tl.store(largest_ptr + place, largest)
    tl.store(mass_ptr + place, tl.sum(weights, axis=0))


@triton.jit
def _bins_kernel(
    logits_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    largest_ptr,
    counts_ptr,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
    BINS_PER_NAT: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """What is behind the last logit is counted in the last bin."""
    row, block = tl.program_id(0), tl.program_id(1)
    if _keeps_all(temperatures_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, GREEDY):
        return
    cols = block * BLOCK + tl.arange(0, BLOCK)
    values = _load_scaled(logits_ptr, temperatures_ptr, row, cols, vocab_size)
    largest = _row_largest(largest_ptr, row, num_blocks, BLOCKS)
    counts = tl.histogram(_bin_of(values, largest, BINS, BINS_PER_NAT), BINS)
    place = (row * num_blocks + block).to(tl.int64) * BINS + tl.arange(0, BINS)
    tl.store(counts_ptr + place, counts)


@triton.jit
def _candidates_kernel(
    logits_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    largest_ptr,
    mass_ptr,
    counts_ptr,
    candidates_ptr,
    num_candidates_ptr,
    vocab_size,
    num_blocks,
    MAX_TOP_P: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
    BINS_PER_NAT: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """The candidates of a row lie one behind the other, in the order of their tokens."""
    row, block = tl.program_id(0), tl.program_id(1)
    if _keeps_all(temperatures_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, GREEDY):
        return
    largest = _row_largest(largest_ptr, row, num_blocks, BLOCKS)
    blocks, bins = tl.arange(0, BLOCKS), tl.arange(0, BINS)
    of_row = counts_ptr + row.to(tl.int64) * num_blocks * BINS
    counts = tl.load(
        of_row + blocks[:, None] * BINS + bins[None, :],
        mask=blocks[:, None] < num_blocks,
        other=0,
    )
    by_bin = tl.sum(counts, axis=0)
    before = tl.cumsum(by_bin, axis=0) - by_bin  # in the bins above
    last_bin = BINS - 1
    top_k = tl.load(top_k_ptr + row)
    limits_k = (top_k > 0) & (top_k < vocab_size)
    if limits_k:
        last_bin = tl.max(tl.where(before < top_k, bins, 0), axis=0)
    min_p = tl.load(min_p_ptr + row)
    if min_p > 0:  # one more, for what rounding does at a bin's border
        reached = tl.minimum(-tl.log(min_p) * BINS_PER_NAT + 1.0, BINS - 1.0).to(tl.int32)
        last_bin = tl.minimum(last_bin, tl.maximum(reached, 0))
    top_p = tl.load(top_p_ptr + row)
    # Of what the other two have left it is a share: then all of that is looked at.
    if (top_p <= MAX_TOP_P) & (min_p <= 0) & (limits_k == 0):
        left_out = (1 - top_p) * _row_mass(largest_ptr, mass_ptr, row, num_blocks, BLOCKS)
        most = by_bin.to(tl.float32) * tl.exp(-bins.to(tl.float32) / BINS_PER_NAT)
        # [bin, below it]: the mass of all bins from this one on is not larger.
        is_below = bins[None, :] >= bins[:, None]
        tail = tl.sum(tl.where(is_below, most[None, :], 0.0), axis=1)
        last_bin = tl.max(tl.where(tail >= 0.99 * left_out, bins, 0), axis=0)
    by_block = tl.sum(tl.where(bins[None, :] <= last_bin, counts, 0), axis=1)
    first = tl.sum(tl.where(blocks < block, by_block, 0), axis=0)
    if block == 0:
        total = tl.minimum(tl.sum(by_block, axis=0), vocab_size)
        tl.store(num_candidates_ptr + row, total)
    if tl.sum(tl.where(blocks == block, by_block, 0), axis=0) > 0:
        cols = block * BLOCK + tl.arange(0, BLOCK)
        values = _load_scaled(logits_ptr, temperatures_ptr, row, cols, vocab_size)
        is_one = _bin_of(values, largest, BINS, BINS_PER_NAT) <= last_bin
        is_one = is_one & (cols < vocab_size)
        place = first + tl.cumsum(is_one.to(tl.int32), axis=0) - 1
        target = candidates_ptr + row.to(tl.int64) * vocab_size
        tl.store(target + place, values, mask=is_one)


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
def _bisected(
    source,
    count,
    least,
    largest,
    wanted,
    COUNTS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The largest bound, from `least` on, at and above which there is as much as is wanted: so many
    candidates, where COUNTS is set, else so much mass.
    """
    low = _ordered(least).to(tl.int64)
    high = _ordered(largest).to(tl.int64)
    ways = tl.arange(0, WAYS)
    while low < high:
        width = (high - low) // WAYS + 1
        bounds = _unordered(tl.minimum(low + ways * width, high).to(tl.int32))
        found = tl.zeros([WAYS], tl.float32)
        for start in range(0, count, CANDIDATES):
            idx = start + tl.arange(0, CANDIDATES)
            values = tl.load(source + idx, mask=idx < count, other=float("-inf"))
            weights = tl.full([CANDIDATES], 1.0, tl.float32)
            if not COUNTS:
                weights = tl.exp(values - largest)
            is_kept = (values[None, :] >= bounds[:, None]) & (idx[None, :] < count)
            found += tl.sum(tl.where(is_kept, weights[None, :], 0.0), axis=1)
        best = tl.max(tl.where(found >= wanted, ways, 0), axis=0).to(tl.int64)
        next_low = tl.minimum(low + best * width, high)
        high = tl.minimum(low + (best + 1) * width - 1, high)
        low = next_low
    return _unordered(low.to(tl.int32))


@triton.jit
def _bisect_kernel(
    candidates_ptr,
    num_candidates_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    largest_ptr,
    mass_ptr,
    thresholds_ptr,
    vocab_size,
    num_blocks,
    BLOCKS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    WAYS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """In the order of `kept_threshold`. Of a row without a finite logit it is anything."""
    row = tl.program_id(0)
    if _keeps_all(temperatures_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, GREEDY):
        tl.store(thresholds_ptr + row, float("-inf"))
        return
    source = candidates_ptr + row.to(tl.int64) * vocab_size
    count = tl.load(num_candidates_ptr + row)
    largest = _row_largest(largest_ptr, row, num_blocks, BLOCKS)
    top_k, min_p = tl.load(top_k_ptr + row), tl.load(min_p_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    threshold = tl.full([], float("-inf"), tl.float32)
    if min_p > 0:
        threshold = largest + tl.log(min_p)
    limits_k = (top_k > 0) & (top_k < vocab_size)
    if limits_k:
        wanted = top_k.to(tl.float32)
        lowest = tl.full([], float("-inf"), tl.float32)
        kth = _bisected(source, count, lowest, largest, wanted, True, CANDIDATES, WAYS)
        threshold = tl.maximum(threshold, kth)
    threshold = tl.minimum(threshold, largest)
    if top_p < 1:
        mass = _row_mass(largest_ptr, mass_ptr, row, num_blocks, BLOCKS)
        if (min_p > 0) | limits_k:
            mass = tl.zeros([], tl.float32)
            for start in range(0, count, CANDIDATES):
                idx = start + tl.arange(0, CANDIDATES)
                values = tl.load(source + idx, mask=idx < count, other=float("-inf"))
                mass += tl.sum(tl.where(values >= threshold, tl.exp(values - largest), 0.0), axis=0)
        kept = _bisected(source, count, threshold, largest, top_p * mass, False, CANDIDATES, WAYS)
        threshold = tl.maximum(threshold, kept)
    tl.store(thresholds_ptr + row, threshold)
