"""A program in a terminal of its own: what a person types, and what is on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

import psutil

from tests.eventually import wait_until

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def _take_terminal() -> None:
    """In the child; whoever runs the tests in the background, or by nohup, ignores what ends it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class TerminalProgram:
    """Inside `with` it runs; it is killed at the end if it still does."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], columns: int = 100) -> None:
        self._fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            argv,
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **env},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(child)
        self.raw = ""
        self._waited_len = 0
        self._is_closed = False

    def __enter__(self) -> TerminalProgram:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if not self._is_closed:
            os.close(self._fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """All that was shown, without what moves the cursor."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def close(self) -> int:
        """As the window of a terminal is closed. Returns the status of the program."""
        self._is_closed = True
        os.close(self._fd)
        return self._process.wait(30.0)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C when it waits for what is typed: readline sleeps over one that came before."""
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_SLEEPING)
        self.type("\x03")

    def wait_for(self, words: str, timeout_s: float = 30.0) -> str:
        """Read on until `words` are there behind what was waited for before; returns the new."""
        deadline = time.monotonic() + timeout_s
        start = self._waited_len
        while words not in self.text[start:]:
            assert time.monotonic() < deadline, f"no {words!r} in:\n{self.text[start:]}"
            assert self._read(), f"it ended without {words!r}:\n{self.text[start:]}"
        self._waited_len = self.text.index(words, start) + len(words)
        return self.text[start : self._waited_len]

    def wait_exit(self, timeout_s: float = 30.0) -> int:
        deadline = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < deadline, self.text
        return self._process.wait(timeout_s)

    def _read(self) -> bool:
        """False when it is over."""
        ready, _, _ = select.select([self._fd], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # nobody holds the other end
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
