"""Which attention kernels are taken: by what they can, by the configuration, and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.tiny_models import save_tiny_llama
from worker.engine.cuda.attention import attention_task
from worker.engine.cuda.attention.attention_choice import choose_kernel
from worker.engine.cuda.attention.attention_task import AttentionTask, KernelName, PartName
from worker.engine.cuda.attention.attention_trial import (
    AttentionTrial,
    KernelUnavailable,
    WrongResults,
)
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.request.step_limits import StepLimits
from worker.engine_link.engine_config import EngineConfig

LAYER = AttentionLayer(32, 8, 128, 128**-0.5)
STEP = StepLimits(max_running=2, max_step_tokens=1024, has_overlap=True)
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def make_task(*layers: AttentionLayer, **values: Any) -> AttentionTask:
    defaults: dict[str, Any] = {
        "layers": layers or (LAYER,),
        "dtype": BF16,
        "kv_dtype": BF16,
        "page_size": 16,
        "capability": (9, 0),
    }
    return AttentionTask(**(defaults | values))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it is looked for; nothing of it is called."""
    monkeypatch.setattr(attention_task, "find_spec", lambda _: object())


SINKS = AttentionLayer(32, 8, 128, 0.1, sinks=torch.zeros(32))
SOFT_CAP = AttentionLayer(32, 8, 128, 0.1, soft_cap=30.0)
WIDE_GROUP = AttentionLayer(64, 2, 128, 0.1)
WIDE_HEADS = AttentionLayer(8, 1, 512, 0.1)
OBSTACLES: list[tuple[AttentionTask, set[str]]] = [
    (make_task(), set()),
    (make_task(AttentionLayer(14, 2, 64, 0.1, window=4096)), set()),
    (make_task(dtype=F32, kv_dtype=F32), {"xqa", "fa2", "fa3"}),
    (make_task(LAYER, AttentionLayer(32, 8, 80, 0.1)), {"xqa", "fa2", "fa3"}),
    (make_task(LAYER, SINKS), {"fa2", "fa3"}),
    (make_task(SOFT_CAP), {"xqa"}),
    (make_task(WIDE_GROUP), {"xqa"}),
    (make_task(page_size=24), {"xqa"}),
    (make_task(kv_dtype=FP8), {"fa3"}),
    (make_task(capability=(8, 0)), {"xqa", "fa3"}),
    (make_task(capability=(10, 0)), {"fa3"}),
    (make_task(capability=(7, 5)), {"xqa", "fa2", "fa3"}),
    (make_task(WIDE_HEADS, capability=(8, 9)), {"xqa", "fa2", "fa3"}),
    (
        make_task(WIDE_HEADS, dtype=F32, kv_dtype=F32, capability=(7, 5)),
        {"triton", "xqa", "fa2", "fa3"},
    ),
]


@pytest.mark.parametrize(("task", "impossible"), OBSTACLES)
def test_kernels_have_obstacles(task: AttentionTask, impossible: set[str]) -> None:
    kernels: tuple[KernelName, ...] = ("triton", "xqa", "fa2", "fa3")
    assert {kernel for kernel in kernels if task.obstacle(kernel) is not None} == impossible


class Stopwatch:
    """Seconds by part and kernel; what has none cannot be compiled."""

    def __init__(self, **seconds: float) -> None:
        self.asked: list[str] = []
        self._seconds = seconds

    def __call__(self, part: PartName, kernel: KernelName) -> float:
        self.asked.append(f"{part}_{kernel}")
        if self.asked[-1] not in self._seconds:
            raise KernelUnavailable("RuntimeError: no nvcc")
        return self._seconds[self.asked[-1]]


def choose(
    stopwatch: Stopwatch, task: AttentionTask | None = None, **config: Any
) -> tuple[KernelName, KernelName]:
    made = EngineConfig(**config)
    made.check()
    decode, prefill = (
        choose_kernel(part, made, task or make_task(), stopwatch) for part in ("decode", "prefill")
    )
    return decode, prefill


def test_auto_takes_the_fastest_for_each_part() -> None:
    times = {"decode_triton": 2.0, "decode_xqa": 1.0, "decode_fa2": 3.0}
    watch = Stopwatch(**times, prefill_triton=1.5, prefill_fa2=1.4, prefill_fa3=1.3)
    assert choose(watch) == ("xqa", "fa3")
    assert watch.asked == [
        *("decode_triton", "decode_xqa", "decode_fa2"),
        *("prefill_triton", "prefill_fa2", "prefill_fa3"),
    ]


def test_auto_goes_without_what_cannot_be_compiled() -> None:
    watch = Stopwatch(decode_triton=2.0, prefill_triton=1.0, prefill_fa2=0.5)
    assert choose(watch) == ("triton", "fa2")
    assert choose(Stopwatch()) == ("triton", "triton"), "there was no memory for a trial"


def test_nothing_is_tried_where_only_triton_is_left() -> None:
    for task, config in (
        (make_task(dtype=F32, kv_dtype=F32), {}),
        (make_task(), {"attention_backend": "triton"}),
    ):
        watch = Stopwatch()
        assert choose(watch, task, **config) == ("triton", "triton")
        assert watch.asked == []


def test_what_is_named_is_taken() -> None:
    slow = Stopwatch(decode_triton=1.0, decode_fa2=9.0, prefill_fa2=9.0, prefill_fa3=8.0)
    assert choose(slow, decode_attention_backend="fa2", attention_backend="triton") == (
        "fa2",
        "triton",
    )
    assert choose(slow, attention_backend="flashinfer") == ("fa2", "fa3")
    assert choose(slow, attention_backend="flashinfer", prefill_attention_backend="triton") == (
        "fa2",
        "triton",
    )


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"decode_attention_backend": "xqa"},
            r"decode_attention_backend=xqa is not possible for decode: xqa: page_size=24 is none "
            "of 16, 32, 64, 128",
        ),
        (
            {"prefill_attention_backend": "fa3", "attention_backend": "triton"},
            "prefill_attention_backend=fa3 is not possible for prefill: fa3: RuntimeError: no nvcc",
        ),
        (
            {"attention_backend": "flashinfer"},
            "attention_backend=flashinfer is not possible for decode: xqa: page_size=24 .*; "
            "fa2: RuntimeError: no nvcc",
        ),
        (
            {"attention_backend": "torch", "prefill_attention_backend": "fa2"},
            "prefill_attention_backend=fa2 is not possible with attention_backend=torch",
        ),
    ],
)
def test_what_cannot_be_is_refused(config: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        choose(Stopwatch(), make_task(page_size=24), **config)


def test_an_engine_refuses_flashinfer_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: None
) -> None:
    monkeypatch.setattr(attention_task, "find_spec", lambda _: None)
    checkpoint = save_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match=r"for decode: xqa: flashinfer is not installed: .*pip"):
        GpuRig(checkpoint, LateDevice(), attention_backend="flashinfer")


class FakePart:
    """Fills its output with a number, which takes time."""

    def __init__(self, now: list[float], plan_s: float, attend_s: float, value: float) -> None:
        self._now = now
        self._plan_s, self._attend_s, self._value = plan_s, attend_s, value

    def plan(self, rows: StepRows) -> None:
        assert rows.num_decode in (0, rows.num_rows)
        self._now[0] += self._plan_s

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        assert len(q) == len(output)
        self._now[0] += self._attend_s
        output.fill_(self._value)


@pytest.mark.parametrize("part", ["decode", "prefill"])
def test_a_trial_times_plans_and_layers_and_looks_at_results(part: PartName) -> None:
    now = [0.0]
    kernels = {  # seconds of a plan, and of a layer; the result
        "triton": (0.0, 2.0, 1.0),
        "fa2": (10.0, 1.0, 1 + 2**-7),
        "xqa": (0.0, 1.0, 1 + 2**-5),  # as of queries that are rounded to e4m3
    }

    def make_part(part: PartName, kernel: KernelName, *_: Any) -> FakePart:
        if kernel not in kernels:
            raise OSError("no compiler")
        return FakePart(now, *kernels[kernel])

    small = [AttentionLayer(2, 1, 4, 0.5)] * 6
    task = make_task(*small)
    trial = AttentionTrial(make_part, LateDevice(), task, STEP, clock=lambda: now[0])
    assert trial.seconds(part, "fa2", compares=True) == pytest.approx(10 + 6 * 1.0)
    assert trial.seconds(part, "triton") == pytest.approx(6 * 2.0)
    assert trial.seconds(part, "xqa") == pytest.approx(6 * 1.0), "it was named"
    with pytest.raises(WrongResults, match=r"differ .* by 3\.1%, and 1\.6% is what bfloat16"):
        trial.seconds(part, "xqa", compares=True)
    with pytest.raises(KernelUnavailable, match="OSError: no compiler"):
        trial.seconds(part, "fa3")
