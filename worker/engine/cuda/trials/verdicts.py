"""What trials have found, on disk: the next start on such a machine tries nothing again."""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from shared.machine.gpu_driver import visible_driver
from shared.telemetry.log import get_logger
from worker.engine.cuda.trials.trial_messages import Answer, Question, Unavailable
from worker.engine.device.code_digest import code_digest
from worker.engine.device.gpu_device import GpuDevice

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
    """A file for each, in a folder of this user. What cannot be read is as if it was not there."""

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
