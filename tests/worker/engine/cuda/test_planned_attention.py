"""An attention that knows of a step only what was planned: a plan that is late or stale tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig, requests
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.attention import attention_choice
from worker.engine.cuda.attention.plain_attention import PlainAttention
from worker.engine.cuda.batch.gpu_batch import StepRows


class PlannedAttention(PlainAttention):
    """Copies lengths and pages when it plans, as flashinfer does, and reads nothing else later."""

    planned: tuple[list[int], list[int], torch.Tensor]
    num_plans = 0

    def plan(self, rows: StepRows) -> None:
        assert not LateDevice.is_replaying, "a graph cannot plan"
        assert (rows.query_lens[: rows.num_decode] <= 1).all()  # of a graph some are nobody's
        pages = rows.page_table[rows.rows]
        self.planned = (rows.query_lens.tolist(), rows.seq_lens.tolist(), pages)
        type(self).num_plans += 1

    def _attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        query_lens, seq_lens, pages = self.planned
        assert sum(query_lens) == len(q)
        layer = self._layers[layer_id]
        outputs = []
        starts = np.cumsum([0, *query_lens]).tolist()
        for row, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
            keys, values = (
                data[pages[row].long()]
                .flatten(0, 1)[:seq_len]
                .repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1)
                for data in self._pool.keys_and_values(layer_id)
            )
            queries = q[starts[row] : starts[row] + query_len]
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * layer.scale
            positions = torch.arange(seq_len - query_len, seq_len)
            scores.masked_fill_(torch.arange(seq_len) > positions[:, None], -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        return torch.cat(outputs).flatten(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "PlainAttention", PlannedAttention)
    monkeypatch.setattr(PlannedAttention, "num_plans", 0)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_planned_is_what_the_step_has(checkpoint: Path, overlap: bool) -> None:
    device = LateDevice()
    ours = GpuRig(checkpoint, device, overlap=overlap).run(*requests())
    assert ours == GpuRig(checkpoint, None).run(*requests())
    assert PlannedAttention.num_plans > device.num_replays > 10


def test_rows_that_change_hands_are_planned_anew(checkpoint: Path) -> None:
    adds = [
        make_add(run_id, random_prompt(20 + run_id, run_id), max_tokens=60, ignore_eos=True)
        for run_id in range(8)
    ]
    config = {"num_kv_tokens": 320, "max_running": 6, "cuda_graph_sizes": (4,)}
    ours = GpuRig(checkpoint, LateDevice(), overlap=True, **config).run(*adds)
    assert ours == GpuRig(checkpoint, None).run(*adds)


def test_guesses_are_planned(checkpoint: Path) -> None:
    add = make_add(1, random_prompt(12, 1) * 4, max_tokens=40, ignore_eos=True)
    ours = GpuRig(checkpoint, LateDevice(), speculate="ngram").run(add)
    assert ours == GpuRig(checkpoint, None).run(add)
