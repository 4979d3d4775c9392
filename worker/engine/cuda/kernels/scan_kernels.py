"""Recurrences of a step, row by row and token by token: what stays of a row lies in registers.

A token is computed by the same instructions wherever a text is cut, and whatever rows are beside
it: a row's states and outputs depend on its own text alone, in every bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from worker.engine.layers.state_layer import Place, StateMark

BLOCK_VALUES = 4096  # of a matrix, for a program


class TritonScans:
    """The `ScanKernels` of a step. What it looks up is sent when it is made: before they are
    captured, if they are.
    """

    def __init__(
        self,
        slots: torch.Tensor,  # [num_rows] int64, on the device
        query_lens: Sequence[int],  # [num_rows]
        marks: Sequence[StateMark],
        place: Place,
    ) -> None:
        lens = torch.tensor(query_lens)
        starts = lens.cumsum(0) - lens
        mark_slots = torch.full((int(lens.sum()),), -1)
        for mark in marks:
            mark_slots[int(starts[mark.row]) + mark.num_tokens - 1] = mark.slot
        self._slots = slots
        self._spans = place(torch.stack([starts, starts + lens], dim=1))  # [num_rows, 2] int64
        self._mark_slots = place(mark_slots)  # [num_tokens] int64, -1: it is not kept there

    def gated_delta(
        self,
        matrices: torch.Tensor,  # [num_slots, num_heads, value_dim, key_dim]
        decays: torch.Tensor,  # [num_tokens, num_heads, key_dim or 1]
        rates: torch.Tensor,  # [num_tokens, num_heads]
        queries: torch.Tensor,  # [num_tokens, num_heads, key_dim]
        keys: torch.Tensor,  # [num_tokens, num_heads, key_dim]
        values: torch.Tensor,  # [num_tokens, num_heads, value_dim]
    ) -> torch.Tensor:
        """As `gated_delta_scan`: [num_tokens, num_heads, value_dim]."""
        _, num_heads, value_dim, key_dim = matrices.shape
        output = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        block_keys = triton.next_power_of_2(key_dim)
        block_values = _block_for(value_dim, block_keys)
        _gated_delta_kernel[(len(self._slots), num_heads, triton.cdiv(value_dim, block_values))](
            matrices,
            self._slots,
            self._spans,
            self._mark_slots,
            decays.contiguous(),
            rates.contiguous(),
            queries.contiguous(),
            keys.contiguous(),
            values.contiguous(),
            output,
            VALUE_DIM=value_dim,
            KEY_DIM=key_dim,
            BLOCK_VALUES=block_values,
            BLOCK_KEYS=block_keys,
            DECAYS_BY_KEY=decays.shape[2] > 1,
            num_warps=4,
        )
        return output

    def selective(
        self,
        matrices: torch.Tensor,  # [num_slots, num_heads, head_dim, state_size]
        times: torch.Tensor,  # [num_tokens, num_heads or 1, head_dim or 1]
        rates: torch.Tensor,  # [num_heads, head_dim or 1, state_size or 1]
        values: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        writers: torch.Tensor,  # [num_tokens, num_heads, state_size]
        readers: torch.Tensor,  # [num_tokens, num_heads, state_size]
    ) -> torch.Tensor:
        """As `selective_scan`: [num_tokens, num_heads, head_dim]."""
        _, num_heads, head_dim, state_size = matrices.shape
        output = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        block_states = triton.next_power_of_2(state_size)
        block_dims = _block_for(head_dim, block_states)
        _selective_kernel[(len(self._slots), num_heads, triton.cdiv(head_dim, block_dims))](
            matrices,
            self._slots,
            self._spans,
            self._mark_slots,
            times.expand(-1, num_heads, -1).contiguous(),
            rates.contiguous(),
            values.contiguous(),
            writers.contiguous(),
            readers.contiguous(),
            output,
            HEAD_DIM=head_dim,
            STATE_SIZE=state_size,
            BLOCK_DIMS=block_dims,
            BLOCK_STATES=block_states,
            TIMES_BY_DIM=times.shape[2] > 1,
            NUM_RATE_DIMS=rates.shape[1],
            NUM_RATE_STATES=rates.shape[2],
            num_warps=4,
        )
        return output


def _block_for(num_rows: int, num_cols: int) -> int:
    """Rows of a matrix for a program, so that a thread has a few values."""
    rows: int = triton.next_power_of_2(num_rows)
    return min(rows, max(1, BLOCK_VALUES // num_cols))


@triton.jit
def _gated_delta_kernel(
    matrices_ptr,
    slots_ptr,
    spans_ptr,
    mark_slots_ptr,
    decays_ptr,
    rates_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    output_ptr,
    VALUE_DIM: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    DECAYS_BY_KEY: tl.constexpr,
):
    row, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1)
    start, end = tl.load(spans_ptr + 2 * row), tl.load(spans_ptr + 2 * row + 1)
    slot = tl.load(slots_ptr + row)
    value_ids = block * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    key_ids = tl.arange(0, BLOCK_KEYS)
    is_value, is_key = value_ids < VALUE_DIM, key_ids < KEY_DIM
    is_both = is_value[:, None] & is_key[None, :]
    places = value_ids[:, None] * KEY_DIM + key_ids[None, :]
    of_head = matrices_ptr + (slot * num_heads + head) * (VALUE_DIM * KEY_DIM)
    matrix = tl.load(of_head + places, mask=is_both, other=0.0)
    for token in range(start, end):
        at = token * num_heads + head
        key = tl.load(keys_ptr + at * KEY_DIM + key_ids, mask=is_key, other=0.0)
        query = tl.load(queries_ptr + at * KEY_DIM + key_ids, mask=is_key, other=0.0)
        value = tl.load(values_ptr + at * VALUE_DIM + value_ids, mask=is_value, other=0.0)
        if DECAYS_BY_KEY:
            decay = tl.load(decays_ptr + at * KEY_DIM + key_ids, mask=is_key, other=0.0)
            matrix = matrix * decay[None, :]
        else:
            matrix = matrix * tl.load(decays_ptr + at)
        mistakes = value - tl.sum(matrix * key[None, :], axis=1)
        matrix += (mistakes * tl.load(rates_ptr + at))[:, None] * key[None, :]
        read = tl.sum(matrix * query[None, :], axis=1)
        tl.store(output_ptr + at * VALUE_DIM + value_ids, read, mask=is_value)
        mark = tl.load(mark_slots_ptr + token)
        if mark >= 0:
            kept = matrices_ptr + (mark * num_heads + head) * (VALUE_DIM * KEY_DIM)
            tl.store(kept + places, matrix, mask=is_both)
    tl.store(of_head + places, matrix, mask=is_both)


@triton.jit
def _selective_kernel(
    matrices_ptr,
    slots_ptr,
    spans_ptr,
    mark_slots_ptr,
    times_ptr,
    rates_ptr,
    values_ptr,
    writers_ptr,
    readers_ptr,
    output_ptr,
    HEAD_DIM: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    BLOCK_DIMS: tl.constexpr,
    BLOCK_STATES: tl.constexpr,
    TIMES_BY_DIM: tl.constexpr,
    NUM_RATE_DIMS: tl.constexpr,  # HEAD_DIM, or 1: for all of a head the same
    NUM_RATE_STATES: tl.constexpr,  # STATE_SIZE, or 1
):
    row, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1)
    start, end = tl.load(spans_ptr + 2 * row), tl.load(spans_ptr + 2 * row + 1)
    slot = tl.load(slots_ptr + row)
    dims = block * BLOCK_DIMS + tl.arange(0, BLOCK_DIMS)
    states = tl.arange(0, BLOCK_STATES)
    is_dim, is_state = dims < HEAD_DIM, states < STATE_SIZE
    is_both = is_dim[:, None] & is_state[None, :]
    places = dims[:, None] * STATE_SIZE + states[None, :]
    of_head = matrices_ptr + (slot * num_heads + head) * (HEAD_DIM * STATE_SIZE)
    matrix = tl.load(of_head + places, mask=is_both, other=0.0)
    rate_places = (head * NUM_RATE_DIMS + dims % NUM_RATE_DIMS)[:, None] * NUM_RATE_STATES
    rate_places += (states % NUM_RATE_STATES)[None, :]
    rates = tl.load(rates_ptr + rate_places, mask=is_both, other=0.0)
    for token in range(start, end):
        at = token * num_heads + head
        value = tl.load(values_ptr + at * HEAD_DIM + dims, mask=is_dim, other=0.0)
        writer = tl.load(writers_ptr + at * STATE_SIZE + states, mask=is_state, other=0.0)
        reader = tl.load(readers_ptr + at * STATE_SIZE + states, mask=is_state, other=0.0)
        if TIMES_BY_DIM:
            time = tl.load(times_ptr + at * HEAD_DIM + dims, mask=is_dim, other=0.0)
            matrix = matrix * tl.exp(time[:, None] * rates)
        else:
            matrix = matrix * tl.exp(tl.load(times_ptr + at) * rates)
        matrix += value[:, None] * writer[None, :]
        read = tl.sum(matrix * reader[None, :], axis=1)
        tl.store(output_ptr + at * HEAD_DIM + dims, read, mask=is_dim)
        mark = tl.load(mark_slots_ptr + token)
        if mark >= 0:
            kept = matrices_ptr + (mark * num_heads + head) * (HEAD_DIM * STATE_SIZE)
            tl.store(kept + places, matrix, mask=is_both)
    tl.store(of_head + places, matrix, mask=is_both)
