"""How attention's work is cut: rows that decode along their keys, chunks along their queries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.engine.cuda.batch.attention_tiles import Capability, decode_keys, extend_keys
from worker.engine.cuda.batch.gpu_batch import StepRows
from worker.engine.cuda.batch.key_splits import MAX_SPLITS, count_splits, list_pieces
from worker.engine.cuda.batch.query_blocks import block_queries, cut_queries, most_blocks
from worker.engine.layers.attention_backend import AttentionLayer


def split(*seq_lens: int, num_wanted: int) -> list[int]:
    return count_splits(np.array(seq_lens), num_wanted).tolist()


def test_a_long_row_is_cut_more_often() -> None:
    assert split(4096, 4096, num_wanted=16) == [8, 8]
    assert split(16384, 512, 512, 512, num_wanted=33) == [30, 1, 1, 1]
    assert split(*[1000] * 100, num_wanted=66) == [1] * 100


def test_a_piece_has_keys() -> None:
    assert split(1, 64, 65, 0, num_wanted=64) == [1, 1, 2, 0]
    assert split(1 << 20, num_wanted=500) == [MAX_SPLITS]
    assert split(num_wanted=4) == []


def test_there_is_room_for_all_pieces() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        seq_lens = (rng.pareto(1.0, rng.integers(1, 40)) * 300).astype(np.int64)
        num_wanted = int(rng.integers(1, 70))
        splits = count_splits(seq_lens, num_wanted)
        pieces, ends = list_pieces(splits, len(seq_lens) + num_wanted)
        assert ((splits > 0) == (seq_lens > 0)).all()
        assert (splits <= -(-seq_lens // 64)).all()
        for row, num_splits in enumerate(splits.tolist()):
            own = [[row, part, num_splits] for part in range(num_splits)]
            assert pieces[ends[row] : ends[row + 1]].tolist() == own
        assert (pieces[ends[-1] :] == 0).all()


def test_a_block_has_room_on_a_processor() -> None:
    """Many heads on one of keys and values, and wide ones, leave room for fewer queries."""
    shapes = [(8, 8, 128), (32, 4, 64), (32, 32, 80), (16, 8, 256), (8, 1, 256), (200, 1, 128)]
    layers = [AttentionLayer(*shape, scale=1.0) for shape in shapes]
    assert [block_queries(layer, torch.bfloat16) for layer in layers] == [128, 16, 128, 32, 8, 1]
    assert [block_queries(layer, torch.float32) for layer in layers] == [32, 4, 32, 16, 4, 1]


@pytest.mark.parametrize(
    ("capability", "extend", "decode"),
    [
        ((9, 0), [64, 64, 64, 64, 64], [64, 64, 64, 64, 32]),  # H100
        ((8, 0), [32, 32, 32, 32, 32], [64, 64, 64, 64, 32]),  # A100
        ((8, 9), [32, 32, 32, 32, 32], [64, 64, 64, 64, 32]),  # L4
        ((12, 0), [32, 32, 32, 32, 32], [64, 64, 64, 64, 32]),  # RTX 5090
        ((7, 5), [32, 32, 32, 16, 16], [64, 64, 64, 32, 16]),  # T4
    ],
)
def test_keys_have_room_in_shared_memory(
    capability: Capability, extend: list[int], decode: list[int]
) -> None:
    shapes = [(8, 8, 64), (32, 8, 128), (48, 1, 128), (16, 8, 256), (8, 1, 512)]
    layers = [AttentionLayer(*shape, scale=1.0) for shape in shapes]
    assert [extend_keys(layer, torch.bfloat16, capability) for layer in layers] == extend
    assert [decode_keys(layer, torch.bfloat16, capability) for layer in layers] == decode


def test_every_query_is_in_one_block() -> None:
    rng = np.random.default_rng(2)
    nothing = torch.empty(0)
    for _ in range(100):
        query_lens = rng.integers(0, 100, rng.integers(1, 9))
        past_lens = rng.integers(0, 50, len(query_lens))
        query_lens[:2] = 1
        rows = StepRows(2, query_lens, past_lens + query_lens, nothing, nothing)
        table = cut_queries(rows, 32)
        assert len(table) <= most_blocks(len(query_lens[2:]), int(query_lens.sum()), 32)
        found = sorted(
            (row, token, position + idx)
            for row, first, position, num_queries in table.tolist()
            for idx, token in enumerate(range(first, first + num_queries))
        )
        starts = query_lens.cumsum() - query_lens
        assert found == [
            (row, starts[row] + idx, past_lens[row] + idx)
            for row in range(2, len(query_lens))
            for idx in range(query_lens[row])
        ]
        assert (np.diff(table[:, 2]) <= 0).all(), "the longest first"
