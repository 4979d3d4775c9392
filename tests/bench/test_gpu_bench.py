"""The GPU's benchmark, tried on a CPU: its arithmetic, its stages, its processes, its tables."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import slim_flashinfer
from bench.gpu.backends import BACKENDS, is_compiled, may_use_flashinfer
from bench.gpu.goals import BIG, MIDDLE, goal_results
from bench.gpu.host_times import HostTimes, StepTimes
from bench.gpu.kernel_build import KernelBuild
from bench.gpu.plan import LIMITS_S, plan
from bench.gpu.report import Report
from bench.gpu.rig import Rig
from bench.gpu.shapes import Costs
from bench.gpu.stages.tests import results_of
from bench.gpu.table import markdown
from bench.gpu.task import Task
from bench.gpu.task_process import run_task
from bench.gpu.timed_device import Launch, TimedDevice
from bench.gpu.toolkit import build_environment
from tests.forked_program import call_forked
from worker.engine.device.host_device import HostDevice

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("model", "weight_gb", "kv_kib"),
    [
        ("qwen3-0.6b", 1.19, 112),
        ("qwen3-1.7b", 3.44, 112),
        ("qwen3-8b", 15.14, 144),
        ("llama-3.1-8b", 15.01, 128),
        ("llama-3.2-1b", 2.47, 32),
    ],
)
def test_a_step_reads_the_weights_of_linears_and_head(
    model: str, weight_gb: float, kv_kib: int
) -> None:
    costs = Costs(model)
    assert costs.weight_bytes / 1e9 == pytest.approx(weight_gb, rel=0.01)
    assert costs.kv_bytes_per_token == kv_kib << 10
    assert costs.decode_bytes(2, 10) == costs.weight_bytes + 20 * (kv_kib << 10)
    assert Costs(model, kv_value_bytes=1).kv_bytes_per_token == kv_kib << 9
    assert costs.step_seconds(1, 1e12, 1e15) == costs.weight_bytes / 1e12
    assert costs.step_seconds(10**6, 1e12, 1e15) == 2e6 * costs.num_layer_weights / 1e15


class StageRig:
    """Runs stages here, of a tiny model, and keeps what they tell."""

    def __init__(self, folder: Path) -> None:
        self.results: list[dict[str, Any]] = []
        self._folder = folder

    def run(
        self, stage: str, engine: dict[str, Any] | None = None, **sizes: Any
    ) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        task = Task(stage, LIMITS_S[stage], "tiny", engine=engine or {})
        rig = Rig.make(task, self._folder, self.results, told.append)
        rig.sizes = replace(rig.sizes, **sizes)
        importlib.import_module(f"bench.gpu.stages.{stage}").run(rig)
        self.results += [{"stage": stage} | result for result in told]
        return told


@pytest.fixture
def rig(tmp_path: Path) -> StageRig:
    return StageRig(tmp_path)


def test_attention_and_tokens_agree_in_every_cell(rig: StageRig) -> None:
    cells = rig.run("correctness")
    assert all(cell["ok"] for cell in cells)
    assert {cell["what"] for cell in cells} == {
        "attention, decode", "attention, prefill", "attention, mixed",
        "tokens, graphs", "tokens, no overlap",
    }  # fmt: skip
    assert {(cell["heads"], cell["page"]) for cell in cells if "page" in cell} == {
        ("4x2x16", 16), ("4x2x16", 64), ("7x1x32", 16), ("7x1x32", 64),
    }  # fmt: skip


@pytest.mark.nightly
def test_logprobs_of_prompt_and_output_are_those_of_transformers(rig: StageRig) -> None:
    cells = rig.run("logprobs")
    assert [cell["what"] for cell in cells] == ["logprobs, prefill", "logprobs, decode"]
    assert all(cell["error"] < 1e-3 for cell in cells)


def test_decode_is_told_with_what_the_host_does(rig: StageRig) -> None:
    cells = rig.run("decode")
    assert [(cell["rows"], cell["sampling"]) for cell in cells] == [
        (2, "greedy"), (1, "greedy"), (1, "greedy"), (1, "top-k, top-p"),
    ]  # fmt: skip
    cell = rig.results[0]
    parts = [cell[f"{part}_ms"] for part in ("schedule", "plan", "launch", "post")]
    assert all(part >= 0 for part in parts)
    assert cell["tokens_per_s"] == pytest.approx(2e3 / cell["step_ms"])


def test_a_number_of_requests_that_has_no_room_is_told_and_fewer_are_measured(
    rig: StageRig,
) -> None:
    sizes = {"decode_rows": (8, 1), "sampled_rows": ()}
    most, one = rig.run("decode", {"num_kv_tokens": 96}, **sizes)
    assert most["skipped"].startswith("8 requests were given, ")
    assert "step_ms" not in most
    assert one["step_ms"] > 0
    assert most["skipped"] in markdown(rig.results, "the command")


def test_prefill_tells_each_length_with_each_chunk(rig: StageRig) -> None:
    cells = rig.run("prefill", chunks=(16, 32), prompt_lens=(20, 60))
    assert [(cell["chunk"], cell["tokens"]) for cell in cells] == [
        (16, 20), (16, 60), (32, 20), (32, 60),
    ]  # fmt: skip
    assert all(cell["ttft_ms"] > 0 for cell in cells)


def test_the_offline_mix_runs_in_five_ways(rig: StageRig) -> None:
    cells = {cell["what"]: cell for cell in rig.run("offline", num_offline=8, offline_len=60)}
    assert list(cells) == ["overlap", "no overlap", "subset", "shared prefix", "few pages"]
    assert cells["overlap"]["hit_rate"] == cells["no overlap"]["hit_rate"] == 0
    assert cells["shared prefix"]["hit_rate"] > 0.3
    assert cells["overlap"]["retractions"] == 0
    assert cells["few pages"]["retractions"] > 0


def test_attention_and_linears_alone(rig: StageRig) -> None:
    torch.manual_seed(0)
    attention = rig.run("attention", attention_lens=(20,), prompt_lens=(20,))
    assert [cell["what"] for cell in attention] == ["decode", "decode", "prefill"]
    linears = rig.run("linears", linear_rows=(3,))
    names = dict.fromkeys(cell["what"] for cell in linears)  # each perhaps by several kernels
    assert list(names) == ["qkv", "output", "gate_up", "down", "head"]
    assert all(cell["us"] > 0 for cell in attention + linears)


def failure_of(task: Task, known: Path, limit_s: float) -> tuple[str | None, list[dict[str, Any]]]:
    """And its results."""
    results: list[dict[str, Any]] = []
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return run_task(task, known, limit_s, environment, results.append), results


def test_a_task_is_a_process_that_ends_with_its_time(tmp_path: Path) -> None:
    known = tmp_path / "results"
    known.write_text('{"stage": "environment", "bytes_per_s": 1e9, "flops_per_s": 1e9}\n')
    task = Task("environment", 1.0)
    failure, results = call_forked(failure_of, task, known, 60.0, timeout_s=100)
    assert failure is None
    assert {"stage": "environment", "bytes_per_s": 1e9, "flops_per_s": 1e9} in results
    failure, _ = call_forked(failure_of, task, known, 0.01, timeout_s=100)
    assert failure == "not done in 0.01 s"


def test_a_task_that_fails_says_why(tmp_path: Path) -> None:
    known = tmp_path / "results"
    known.write_text("")
    task = Task("decode", 60.0, "no-such-model")
    failure, _ = call_forked(failure_of, task, known, 60.0, timeout_s=100)
    assert failure == "KeyError: 'no-such-model'"


def test_without_time_nothing_is_begun_and_it_is_told(tmp_path: Path) -> None:
    results, table = tmp_path / "results", tmp_path / "table.md"
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--models", "tiny", "--budget-s", "1",
         "--json", str(results), "--table", str(table)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert done.returncode == 1
    assert {line["stage"] for line in lines} == set(LIMITS_S)
    assert all(line["failed"].startswith("not begun") for line in lines)
    assert "- decode tiny: not begun" in table.read_text()


def test_the_main_table_comes_before_peers_and_other_models_decode_alone() -> None:
    tasks = plan(["a", "b", "c"], ["triton", "fa2"], LIMITS_S, {})
    names = [task.name for task in tasks]
    assert names[0] == "environment"
    assert names.index("decode c") < names.index("prefill a") < names.index("generate_batch b")
    assert names.index("generate b") < names.index("offline a") < names.index("attention fa2")
    assert [name for name in names if name.endswith(" c")] == ["decode c"]
    assert names.index("linears b") < names.index("correctness fa2") < names.index("decode a")
    (task,) = plan(["a"], ["triton"], ["decode"], {"kv_dtype": "fp8"})
    assert Task.from_json(task.to_json()) == Task("decode", 90.0, "a", engine={"kv_dtype": "fp8"})


def test_goals_are_met_accepted_or_missed_by_the_worst_that_they_mean() -> None:
    def decode(rows: int, share: float) -> dict[str, Any]:
        return {
            "stage": "decode",
            "model": BIG,
            "rows": rows,
            "sampling": "greedy",
            "share": share,
            "idle_us": 1e3 / rows,
        }

    sampled = decode(1, 0.3) | {"sampling": "top-k, top-p"}
    results = [decode(1, 0.83), decode(32, 0.9), decode(256, 0.75), sampled]
    results.append({"stage": "x", "model": MIDDLE})
    reached = {goal["goal"]: goal["reached"] for goal in goal_results(results)}
    assert reached["8B decode, 1 request"] == "met"
    assert reached["8B decode, 32 to 256 requests"] == "accepted"
    assert reached["GPU idle between steps, us"] == "missed"
    assert reached["8B prefill"] == reached["1.7B decode, 1 request"] == "not measured"
    assert not any("0.6B" in name for name in reached)
    assert goal_results([{"stage": "decode", "model": "tiny", "rows": 1, "share": 1.0}]) == []


def test_only_kernels_that_were_compiled_beforehand_are_tried() -> None:
    assert all(is_compiled(name, (16, 8, 128), 16) for name in BACKENDS)
    assert is_compiled("triton", (32, 8, 64), 64)
    assert is_compiled("fa2", (28, 4, 128), 64)
    assert not is_compiled("fa3", (32, 8, 64), 16)
    assert not is_compiled("xqa", (28, 4, 128), 16)
    assert not is_compiled("xqa", (32, 8, 128), 64)


def test_what_may_use_flashinfer_waits_for_its_kernels() -> None:
    tasks = plan(["a"], ["triton", "fa3"], LIMITS_S, {})
    names = [task.name for task in tasks]
    waiting = [task.name for task in tasks if may_use_flashinfer(task)]
    assert waiting == names[names.index("correctness fa3") :]


class Event:
    """At a millisecond of the GPU's clock."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


def test_a_gpu_is_idle_from_end_to_begin_and_while_late_work_is_enqueued() -> None:
    first = Launch(0.001, Event(0), Event(5), was_ahead=True)
    assert Launch(0.002, Event(5.5), Event(9), was_ahead=True).idle_s(first) == 0.0005
    assert Launch(0.002, Event(5.5), Event(9)).idle_s(first) == 0.0025

    times = HostTimes.__new__(HostTimes)
    times.steps = [
        StepTimes(begin_s=n * 0.01, schedule_s=0.001, plan_s=0.002, launch_s=0.003, wait_s=0.003,
                  num_rows=4, launches=[Launch(0.003, Event(n * 10), Event(n * 10 + 9), True)])
        for n in range(8)
    ]  # fmt: skip
    facts = times.decode_facts(4)
    assert facts["host_ms"] == pytest.approx(7)
    assert facts["post_ms"] == pytest.approx(1)
    assert facts["idle_us"] == pytest.approx(1000)
    assert facts["ahead"] == 1
    assert times.decode_facts(5) == {}


def test_work_on_a_gpu_is_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that note their order stand in for those of a GPU."""
    order: list[object] = []

    class Recorded(Event):
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            super().__init__(0)

        def record(self) -> None:
            order.append(self)

        def query(self) -> bool:
            return len(order) < 3  # asked before all is enqueued

    class Device(HostDevice):
        torch_device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    device = TimedDevice(Device())
    device.enqueue(lambda: order.append("work"))
    (launch,) = device.launches
    assert order == [launch.begin, "work", launch.end]
    assert launch.was_ahead


def test_a_timed_device_is_the_device_with_a_clock() -> None:
    device = TimedDevice(HostDevice())
    done: list[int] = []
    device.enqueue(lambda: done.append(1))
    assert done == [1]
    assert [launch.begin for launch in device.launches] == [None]
    assert device.num_processors == 1


def test_the_table_has_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    report = Report(tmp_path / "results")
    report.add({"stage": "environment", "gpu": "A GPU", "torch": "2.11", "triton": "none"})
    report.add({"stage": "environment", "bytes_per_s": 4.3e12, "flops_per_s": 7.9e14})
    report.add({"stage": "correctness", "what": "draws", "ok": True})
    report.add({"stage": "correctness", "what": "tokens", "backend": "fa2", "ok": False})
    for backend, us in (("triton", 12.0), ("fa2", 10.0), ("fa3", 11.0)):
        cell = {"heads": "16/8", "rows": 8, "context": 512, "us": us, "share": 0.5, "plan_us": 1.0}
        report.add({"stage": "attention", "what": "decode", "backend": backend} | cell)
    report.add(
        {
            "stage": "decode",
            "model": BIG,
            "rows": 8,
            "sampling": "greedy",
            "step_ms": 4.12345,
            "share": 0.8137,
            "attention": "xqa/fa3",
        }
    )
    report.add({"stage": "generate", "task": "generate a", "failed": "not done in 5 s"})
    text = markdown(report.results, "the command")
    assert "A GPU; torch 2.11; `the command`" in text
    assert "4.30 TB/s, products reach 790 TFLOP/s" in text
    assert "1 of 2 cells agree; not tokens (fa2)." in text
    assert "| 16/8 | 512 | 8 | fa2 | 10.0 | 50% | 1 |" in text
    assert "| qwen3-8b | xqa/fa3 | greedy | 8 | 4.123 |  | 81% |" in text
    assert "- generate a: not done in 5 s" in text
    assert len(report.path.read_text().splitlines()) == len(report.results)


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("flashinfer/decode.py", True),
        ("flashinfer/moe_ep/layer.py", False),
        ("flashinfer/data/csrc/batch_decode.cu", True),
        ("flashinfer/data/csrc/xqa/mha_sm90.cu", True),
        ("flashinfer/data/csrc/fused_moe/moe.cu", False),
        ("flashinfer/data/csrc/sampling.cu", False),
        ("flashinfer/data/cutlass/include/cutlass/cutlass.h", True),
        ("flashinfer/data/cutlass/tools/profiler/main.cu", False),
        ("flashinfer_python-0.7.2.dist-info/METADATA", True),
        ("build_backend.py", False),
    ],
)
def test_a_slim_flashinfer_has_what_attention_compiles_from(name: str, is_kept: bool) -> None:
    assert slim_flashinfer.is_kept(name) == is_kept


def test_tests_that_failed_are_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuites><testsuite name="pytest" errors="0" failures="1" skipped="1" tests="3">'
        '<testcase classname="tests.worker.engine.cuda.test_kernels" name="test_a[gpu]"/>'
        '<testcase classname="tests.worker.engine.cuda.test_kernels" name="test_b[gpu]">'
        '<failure message="AssertionError: 7">at length</failure></testcase>'
        '<testcase classname="tests.worker.engine.cuda.test_ranks" name="test_c">'
        '<skipped message="no NVIDIA GPU"/></testcase></testsuite></testsuites>'
    )
    told = list(results_of(path))
    assert told == [
        {"test": "test_kernels::test_b[gpu]", "why": "AssertionError: 7"},
        {"ran": 2, "passed": 1},
    ]
    text = markdown([{"stage": "tests"} | result for result in told], "the command")
    assert "**Tests**: 1 of 2 pass.\n- `test_kernels::test_b[gpu]`: AssertionError: 7" in text


def test_headers_and_libraries_of_pip_make_up_for_a_toolkit_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, root = tmp_path / "links", tmp_path / "site" / "nvidia" / "cu13"
    for folder in (links, root / "include", root / "lib"):
        folder.mkdir(parents=True)
    (root / "lib" / "libcudart.so.13").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = build_environment(links, {"FLASHINFER_EXTRA_LDFLAGS": "-Lmine"})
    assert found["FLASHINFER_EXTRA_CUDAFLAGS"] == f"-I{root / 'include'}"
    assert found["FLASHINFER_EXTRA_LDFLAGS"] == f"-Lmine -L{links}"
    assert (links / "libcudart.so").resolve() == root / "lib" / "libcudart.so.13"


@pytest.mark.parametrize(
    ("program", "limit_s", "failed"),
    [("raise SystemExit(3)", 60.0, "status 3"), ("import time; time.sleep(60)", 0.1, "0 s")],
)
def test_kernels_that_do_not_compile_in_time_are_told_once(
    tmp_path: Path, program: str, limit_s: float, failed: str
) -> None:
    (tmp_path / "torch.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with KernelBuild(environment) as build:
        result = build.result(limit_s)
        assert result is not None
        assert result["failed"].endswith(failed)
        assert build.result(limit_s) is None
