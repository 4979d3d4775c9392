"""Kernels are tried in a process that may die of them, and what was found is remembered."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import torch

from tests.forked_program import call_forked
from worker.engine.cuda.attention.attention_task import AttentionTask
from worker.engine.cuda.attention.attention_trial import KernelUnavailable
from worker.engine.cuda.trials import kernel_trials
from worker.engine.cuda.trials.kernel_trials import KernelTrials, TrialMachine, Verdicts
from worker.engine.cuda.trials.trial_messages import (
    Answer,
    AttentionPlace,
    AttentionQuestion,
    Found,
    Question,
    TilesQuestion,
    Took,
    Unavailable,
)
from worker.engine.cuda.trials.trial_process import CannotTry, TrialProcess
from worker.engine.device.host_device import HostDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.request.step_limits import StepLimits

TASK = AttentionTask(
    [AttentionLayer(4, 2, 8, 0.5, window=32), AttentionLayer(4, 2, 8, 0.5, sinks=torch.ones(4))],
    torch.bfloat16,
    torch.bfloat16,
    16,
    (9, 0),
)
STEP = StepLimits(max_running=2, max_step_tokens=64, has_overlap=True)
PLACE = AttentionPlace.of(TASK, STEP)
TILES = TilesQuestion(48, 64, 1, 1, "float32")
MACHINE = TrialMachine.of(HostDevice())


def test_a_process_tries_and_may_die(interpreter: None) -> None:
    """Killed or hanging in the midst of a trial it costs that kernel, and another one is started.

    Who cannot try one thing may try the next.
    """
    call_forked(try_and_die, timeout_s=100)


def try_and_die() -> None:
    """On the CPU, which Triton's interpreter takes for a GPU."""
    process = TrialProcess("cpu")
    assert isinstance(process.ask(TILES), Found)
    first = process.pid
    assert first is not None
    answer = process.ask(msgspec.structs.replace(TILES, dtype="float17"))
    assert isinstance(answer, Unavailable)
    assert "float17" in answer.reason
    assert not answer.is_lasting
    assert isinstance(process.ask(TILES), Found)
    assert process.pid == first
    answers: list[Answer] = []
    endless = AttentionQuestion(PLACE, "prefill", "triton", compares=False)
    thread = threading.Thread(target=lambda: answers.append(process.ask(endless)))
    thread.start()
    os.kill(first, signal.SIGSEGV)
    thread.join()
    told = "its trial ended the process that tried it, with signal 11"
    assert answers == [Unavailable(told, is_lasting=True, is_fatal=True)]
    process._answer_s = 0.01
    told = "its trial gave no result within 0 s"
    assert process.ask(endless) == Unavailable(told, is_fatal=True)
    assert process.pid is None


def test_a_process_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CannotTry, match="it ended with status 1"):
        TrialProcess("0").ask(TILES)


class Asked:
    """Answers, and notes what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> Answer:
        self.questions.append(question)
        return self.answers.pop(0)


def test_a_start_tries_what_no_start_before_has_tried(tmp_path: Path) -> None:
    """Results of others are compared where our own kernel computes; what may pass is asked anew."""
    folder = tmp_path / "trials"
    wrong = Unavailable("its results differ", is_lasting=True)
    ask = Asked(
        Took(2.0), Took(1.0), wrong, Unavailable("no nvcc"), Found((16, 64, 2)), Found(None)
    )

    def start() -> list[object]:
        trials = KernelTrials(ask, Verdicts(folder, MACHINE))
        seconds = trials.stopwatch(TASK, STEP)
        found: list[object] = [seconds("decode", "triton"), seconds("decode", "fa2")]
        for kernel in ("xqa", "fa3"):
            with pytest.raises(KernelUnavailable) as caught:
                seconds("decode", kernel)
            found.append(str(caught.value))
        return [*found, *(trials.choose_tiles((48, 64), 3, num_rows) for num_rows in (1, 2))]

    found = start()
    assert found == [2.0, 1.0, "its results differ", "no nvcc", (16, 64, 2), None]
    compared = [it.compares for it in ask.questions if isinstance(it, AttentionQuestion)]
    assert compared == [False, True, True, True]
    ask.questions, ask.answers = [], [Unavailable("no nvcc")]
    assert start() == found
    assert len(ask.questions) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("field", TrialMachine.__struct_fields__)
def test_another_machine_knows_nothing(field: str, tmp_path: Path) -> None:
    Verdicts(tmp_path, MACHINE).keep(TILES, Found(None))
    changed = (9, 9) if field == "capability" else 9 if field == "num_processors" else "other"
    other = msgspec.structs.replace(MACHINE, **{field: changed})
    assert Verdicts(tmp_path, other).find(TILES) is None
    assert Verdicts(tmp_path, MACHINE).find(TILES) == Found(None)


def test_a_damaged_verdict_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that was renamed; and there are never more than so many."""
    kept = Verdicts(tmp_path, MACHINE)
    kept.keep(TILES, Found((16, 64, 2)))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-5], b"\xff" + whole, b"{}", b"[" * 100_000):
        path.write_bytes(damaged)
        assert kept.find(TILES) is None
    path.write_bytes(whole.replace(b'"num_rows":1', b'"num_rows":2'))
    assert kept.find(TILES) is None, "it is another one's"
    monkeypatch.setattr(kernel_trials, "MAX_VERDICTS", 3)
    for num_rows in range(1, 9):
        kept.keep(msgspec.structs.replace(TILES, num_rows=num_rows), Found(None))
    assert len(list(tmp_path.iterdir())) <= 4
    assert kept.find(msgspec.structs.replace(TILES, num_rows=8)) == Found(None)
    file = tmp_path / "file"
    file.write_text("")
    Verdicts(file / "below", MACHINE).keep(TILES, Found(None))  # there is no room: it goes on


def test_a_place_is_the_task_again() -> None:
    again = AttentionPlace.of(PLACE.task(), PLACE.step())
    assert again == msgspec.json.decode(msgspec.json.encode(PLACE), type=AttentionPlace) == PLACE
