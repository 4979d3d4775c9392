"""What is said while a stack runs: prefixed lines and progress for a person, or JSON lines."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable
from typing import IO, TextIO, cast

import msgspec
from rich.console import Console
from rich.text import Text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta")


class _LossyStream:
    """Writing to it never fails: what its terminal, pipe or disk does not take is lost.

    A stack outlives its terminal, whoever reads its log, and a disk that is full for a while.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class Terminal:
    """Logs and progress go to stderr, line by line; stdout gets the ready block alone.

    With `as_json` every line of both is a JSON object.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._out, self._err = _LossyStream(sys.stdout), _LossyStream(sys.stderr)
        # What a console of rich asks of its file is what a lossy stream has.
        self.console = Console(file=cast("IO[str]", self._err), highlight=False, soft_wrap=True)
        self.is_json = as_json
        self._colours: dict[str, str] = {}

    @property
    def is_interactive(self) -> bool:
        return self.console.is_terminal and not self.is_json

    def log_sink(self, role: str) -> Callable[[str], None]:
        """A function that prints one line of `role`."""
        if self.is_json:
            return lambda line: self._log(line if _is_object(line) else _event(role, line=line))
        colour = self._colours.setdefault(role, _COLOURS[len(self._colours) % len(_COLOURS)])
        prefix = Text(f"[{role}] ", style=colour)

        def write(line: str) -> None:
            if self.is_interactive:
                self.console.print(prefix + Text.from_ansi(line))
            else:
                self._log(f"[{role}] {line}")

        return write

    def say(self, sentence: str) -> None:
        """A line of the supervisor's own."""
        if self.is_json:
            self._log(_event("serve", line=sentence))
        else:
            self.console.print(Text(f"jetflock: {sentence}"))

    def show(self, block: str, facts: dict[str, object]) -> None:
        """The same for a person and for a program."""
        self._out.write(_event("serve", **facts) + "\n" if self.is_json else block)
        self._out.flush()

    def _log(self, line: str) -> None:
        self._err.write(f"{line}\n")
        self._err.flush()


def _event(role: str, **facts: object) -> str:
    """As the roles' own lines are; what was no event is a line that somebody has printed."""
    at = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    common = {"event": "said", "role": role, "level": "info", "timestamp": at}
    return msgspec.json.encode(common | facts).decode()


def _is_object(line: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False
