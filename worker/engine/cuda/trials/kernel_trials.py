"""What the loading of a model asks of trials: kept on disk by an earlier start, or tried now."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from shared.machine.gpu_driver import visible_driver
from shared.telemetry.log import get_logger
from worker.engine.cuda.attention.attention_choice import Stopwatch
from worker.engine.cuda.attention.attention_task import AttentionTask, KernelName, PartName
from worker.engine.cuda.attention.attention_trial import OUR_KERNEL, KernelUnavailable
from worker.engine.cuda.cuda_device import CudaDevice
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
from worker.engine.cuda.trials.tryer import Tryer
from worker.engine.device.cache_folder import cache_folder
from worker.engine.device.code_digest import code_digest
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.request.step_limits import StepLimits

Ask = Callable[[Question], Answer]
MAX_VERDICTS = 2000  # files; a model has about 30
_SOURCES = Path(__file__).parents[1]

log = get_logger(__name__)


class TrialMachine(msgspec.Struct, frozen=True):
    """All that a verdict depends on, but for what was asked."""

    gpu: str
    capability: tuple[int, int]
    num_processors: int
    driver: str
    torch: str
    triton: str
    flashinfer: str
    code: str  # a digest of our own kernels and trials

    @classmethod
    def of(cls, device: GpuDevice) -> TrialMachine:
        return cls(
            device.name,
            device.capability,
            device.num_processors,
            visible_driver(os.environ) or "",
            _version("torch"),
            _version("triton"),
            _version("flashinfer-python"),
            code_digest([_SOURCES]).hex()[:32],
        )


class _Verdict(msgspec.Struct, frozen=True):
    machine: TrialMachine
    question: Question
    answer: Answer


class Verdicts:
    """What trials have found, on disk: the next start on such a machine tries nothing again.

    A file for each, in a folder of this user. What cannot be read is as if it was not there.
    """

    def __init__(self, folder: Path, machine: TrialMachine) -> None:
        self._folder = folder
        self._machine = machine
        self._decoder = msgspec.json.Decoder(_Verdict)

    def find(self, question: Question) -> Answer | None:
        try:
            verdict = self._decoder.decode(self._path(question).read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_ours = verdict.machine == self._machine and verdict.question == question
        return verdict.answer if is_ours else None

    def keep(self, question: Question, answer: Answer) -> None:
        """As far as there is room. Not what another trial might see otherwise."""
        if isinstance(answer, Unavailable) and not answer.is_lasting:
            return
        data = msgspec.json.encode(_Verdict(self._machine, question, answer))
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_oldest()
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(data)
            os.replace(file.name, self._path(question))
        except OSError as exc:
            log.warning("verdict_not_kept", folder=str(self._folder), reason=str(exc))

    def _path(self, question: Question) -> Path:
        told = msgspec.json.encode([self._machine, question])
        return self._folder / f"{hashlib.sha256(told).hexdigest()[:32]}.json"

    def _forget_oldest(self) -> None:
        files = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(self._folder)]
        for _, path in sorted(files)[: max(0, len(files) - MAX_VERDICTS)]:
            Path(path).unlink(missing_ok=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class KernelTrials:
    """The trials of one start of an engine."""

    def __init__(self, ask: Ask, verdicts: Verdicts | None = None) -> None:
        self._ask = ask
        self._verdicts = verdicts
        self.num_tried = 0
        self.num_known = 0

    def stopwatch(self, task: AttentionTask, step: StepLimits) -> Stopwatch:
        """How long attention kernels take in a model's steps."""
        place = AttentionPlace.of(task, step)
        ours: set[PartName] = set()  # where our own kernel computes, and others are compared

        def seconds(part: PartName, kernel: KernelName) -> float:
            answer = self._answer(AttentionQuestion(place, part, kernel, part in ours))
            if isinstance(answer, Unavailable):
                raise KernelUnavailable(answer.reason)
            assert isinstance(answer, Took)
            if kernel == OUR_KERNEL:
                ours.add(part)
            return answer.seconds

        return seconds

    def choose_tiles(
        self, shape: tuple[int, int], num_layers: int, num_rows: int
    ) -> tuple[int, int, int] | None:
        """Tiles for products in bfloat16, as `ChooseTiles`; the library's where ours fail."""
        answer = self._answer(TilesQuestion(*shape, num_layers, num_rows, "bfloat16"))
        if isinstance(answer, Unavailable):
            log.warning("linears_not_tried", shape=shape, num_rows=num_rows, reason=answer.reason)
            return None
        assert isinstance(answer, Found)
        return answer.tiles

    def _answer(self, question: Question) -> Answer:
        known = None if self._verdicts is None else self._verdicts.find(question)
        if known is not None:
            self.num_known += 1
            return known
        self.num_tried += 1
        answer = self._ask(question)
        if self._verdicts is not None:
            self._verdicts.keep(question, answer)
        return answer


@contextmanager
def kernel_trials(device: GpuDevice) -> Iterator[KernelTrials]:
    """In a process of their own on a real GPU, which ends with them; here on one that is none."""
    if not isinstance(device, CudaDevice):
        yield KernelTrials(Tryer(device).answer)
        return
    folder = cache_folder()
    verdicts = None if folder is None else Verdicts(folder / "trials", TrialMachine.of(device))
    process = TrialProcess(str(device.torch_device.index))
    trials = KernelTrials(_apart(process, device), verdicts)
    try:
        yield trials
    finally:
        process.close()
        log.info("kernels_tried", num_tried=trials.num_tried, num_known=trials.num_known)


def _apart(process: TrialProcess, device: GpuDevice) -> Ask:
    """Asks the process; tries in this one from when that cannot be had."""
    here: Tryer | None = None

    def ask(question: Question) -> Answer:
        nonlocal here
        if here is None:
            try:
                return process.ask(question)
            except CannotTry as exc:
                log.warning("trials_in_engine", reason=str(exc))
                here = Tryer(device)
        return here.answer(question)

    return ask
