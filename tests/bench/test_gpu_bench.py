"""The GPU's benchmark, tried on a CPU: its arithmetic, and what its stages tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.gpu.report import Report
from bench.gpu.shapes import Costs
from bench.gpu.stages import Bench, decode, environment, offline, prefill


@pytest.mark.parametrize(
    ("model", "weight_gb", "kv_kib"), [("qwen3-0.6b", 1.19, 112), ("qwen3-8b", 15.14, 144)]
)
def test_a_step_reads_the_weights_of_linears_and_head(
    model: str, weight_gb: float, kv_kib: int
) -> None:
    costs = Costs(model)
    assert costs.weight_bytes / 1e9 == pytest.approx(weight_gb, rel=0.01)
    assert costs.kv_bytes_per_token == kv_kib << 10
    assert costs.decode_bytes(2, 10) == costs.weight_bytes + 20 * (kv_kib << 10)


def test_the_stages_tell_what_they_measure(tmp_path: Path) -> None:
    path = tmp_path / "results"
    settings = {"device": "cpu", "num_threads": 1, "max_step_tokens": 64, "num_kv_tokens": 2048}
    bench = Bench(tmp_path, Report(path), torch.device("cpu"), ("tiny",), settings)
    for stage in (environment, decode, prefill, offline):
        stage(bench)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["stage"] for line in lines] == [
        "environment", "ceilings", "decode", "decode", "prefill", "offline", "offline",
    ]  # fmt: skip
    by_stage = {line["stage"]: line for line in lines}
    assert by_stage["decode"]["rows"] == 2
    assert by_stage["decode"]["tokens_per_s"] > 0
    assert by_stage["prefill"]["ttft_ms"] > 0
    assert "failed" not in path.read_text()
