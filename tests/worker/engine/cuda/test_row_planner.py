"""What flashinfer plans by, against lists that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.engine.cuda.late_device import LateDevice
from worker.engine.cuda.attention.row_planner import PagedPlan
from worker.engine.cuda.batch.gpu_batch import StepRows


@pytest.mark.parametrize("seed", range(20))
def test_rows_lie_one_behind_the_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 3, 16]))
    num_decode, num_extend = (int(number) for number in rng.integers(1, 9, 2))
    query_lens = np.concatenate([np.ones(num_decode, int), rng.integers(1, 50, num_extend)])
    seq_lens = query_lens + rng.integers(0, 70, len(query_lens))
    rows = StepRows(num_decode, query_lens, seq_lens, torch.arange(9), torch.zeros(9, 200).int())
    assert (rows.decoding.num_rows, rows.extending.num_rows) == (num_decode, num_extend)

    plan = PagedPlan.of(LateDevice(), rows.extending, page_size)
    queries: list[tuple[int, int]] = []  # row, position
    slots: list[tuple[int, int]] = []
    for row in range(num_extend):
        own = slice(int(plan.qo_indptr[row]), int(plan.qo_indptr[row + 1]))
        assert own.start == len(queries)
        seq_len, query_len = int(seq_lens[num_decode + row]), int(query_lens[num_decode + row])
        queries += [(row, position) for position in range(seq_len - query_len, seq_len)]
        assert own.stop == len(queries)
        num_pages = int(plan.kv_indptr[row + 1] - plan.kv_indptr[row])
        last_page_len = int(plan.last_page_len[row])
        assert 1 <= last_page_len <= page_size
        slots += [(row, slot) for slot in range((num_pages - 1) * page_size + last_page_len)]
        assert slots[-1] == queries[-1] == (row, seq_len - 1)
        assert num_pages <= plan.max_pages
    assert plan.num_pages == plan.kv_indptr[-1]
    assert plan.seq_lens.tolist() == seq_lens[num_decode:].tolist()
    assert {each.dtype for each in (plan.qo_indptr, plan.kv_indptr, plan.last_page_len)} == {
        torch.int32
    }
