"""An engine's side of the process that tries kernels: starts it, asks it, and outlives it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import Self

import msgspec

from worker.engine.cuda.trials.trial_messages import Answer, Question, Unavailable
from worker.engine_link.engine_launch import engine_environment

START_S = 120.0
ANSWER_S = 900.0  # flashinfer compiles its kernels for minutes
_END_S = 10.0
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)  # from outside: by an operator, or for its memory


class CannotTry(Exception):
    """No process can be had that could: where a GPU is for one process alone, for example."""


class TrialProcess:
    """Started when it is first asked, and anew after a kernel was the end of it."""

    def __init__(self, gpu: str, answer_s: float = ANSWER_S) -> None:
        """`gpu`: the number of one, or `cpu`."""
        self._gpu = gpu
        self._answer_s = answer_s
        self._decoder = msgspec.json.Decoder(Answer)
        self._child: _Child | None = None

    def ask(self, question: Question) -> Answer:
        """An answer whatever happens to the process. Raises CannotTry where it cannot be started.

        From the main thread: the kernel ends the process with the thread that starts it.
        """
        child = self._child = self._child or _Child.start(self._gpu)
        try:
            child.send(msgspec.json.encode(question))
            answer: Answer = self._decoder.decode(child.receive(self._answer_s))
        except TimeoutError:
            child.process.kill()
            reason = f"its trial gave no result within {self._answer_s:.0f} s"
            answer = Unavailable(reason, is_fatal=True)
        except OSError:
            status = child.wait()
            ended = f"signal {-status}" if status < 0 else f"status {status}"
            answer = Unavailable(
                f"its trial ended the process that tried it, with {ended}",
                is_lasting=status < 0 and status not in _KILLED,
                is_fatal=True,
            )
        if isinstance(answer, Unavailable) and answer.is_fatal:
            self.close()
        return answer

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        """Its memory on the GPU is free afterwards."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process = process
        self._connection = connection

    @classmethod
    def start(cls, gpu: str) -> Self:
        """Waits until it can begin. Raises CannotTry."""
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", "worker.engine.cuda.trials"]
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [*program, str(theirs.fileno()), gpu],
                pass_fds=(theirs.fileno(),),
                env=engine_environment(),
            )
        child = cls(process, ours)
        try:
            child.receive(START_S)
        except OSError as exc:
            process.kill()
            child.close()
            raise CannotTry(f"no process for trials started: {str(exc) or 'too slow'}") from None
        return child

    def send(self, line: bytes) -> None:
        self._connection.sendall(line + b"\n")

    def receive(self, timeout_s: float) -> bytes:
        """Its next line. Raises TimeoutError, and OSError where it has ended."""
        deadline = time.monotonic() + timeout_s
        received = b""
        while not received.endswith(b"\n"):
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._connection.recv(65536)
            if not part:
                raise ConnectionResetError(f"it ended with status {self.wait()}")
            received += part
        return received

    def wait(self) -> int:
        """Its exit status; it has closed its socket, or we have."""
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        self._connection.close()
        self.wait()
