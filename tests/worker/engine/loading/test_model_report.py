"""What `jetflock doctor` is told of a checkpoint, with a GPU and without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from tests.e2e.role_stack import DEMO_MODEL
from tests.worker.engine.cuda.late_device import LateDevice
from worker.engine.loading.model_report import report_on, report_on_gpu
from worker.engine.loading.stored_weights import weights_format
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import EngineConfig


def test_a_model_that_is_served() -> None:
    report = report_on(DEMO_MODEL)
    assert (report.refusal, report.shortage) == ("", "")
    assert (report.architecture, report.dtype) == ("LlamaForCausalLM", "float32")


def test_a_model_that_is_refused(tmp_path: Path) -> None:
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "aqlm"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "quantised by aqlm" in report_on(tmp_path).refusal


def test_a_gpu_has_its_own_memory() -> None:
    model = read_model_config(DEMO_MODEL)
    report = report_on_gpu(EngineConfig(), model, torch.float32, LateDevice())
    assert report.computed_by == "our fused decoder on the GPU"
    tiny = EngineConfig(gpu_memory_utilization=1e-9)
    assert "weights take" in report_on_gpu(tiny, model, torch.float32, LateDevice()).shortage


def test_the_format_of_weights_is_told_in_few_words() -> None:
    model = read_model_config(DEMO_MODEL)
    assert weights_format(model, torch.bfloat16) == "bfloat16"
    stored = dataclasses.replace(model, quantization="gptq 4-bit")
    assert weights_format(stored, torch.bfloat16) == "gptq 4-bit"
    made = dataclasses.replace(model, made_format="int8")
    assert weights_format(made, torch.bfloat16) == "int8 by channel, made when loaded"
