"""What the person at the terminal sees: prefixed log lines, progress, and the ready block."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta")


class Terminal:
    """Logs and progress go to stderr, line by line; stdout gets the ready block alone."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._colours: dict[str, str] = {}

    @property
    def is_interactive(self) -> bool:
        return self.console.is_terminal

    def log_sink(self, role: str) -> Callable[[str], None]:
        """A function that prints one line of `role`."""
        colour = self._colours.setdefault(role, _COLOURS[len(self._colours) % len(_COLOURS)])
        prefix = Text(f"[{role}] ", style=colour)

        def write(line: str) -> None:
            if self.is_interactive:
                self.console.print(prefix + Text.from_ansi(line))
            else:
                sys.stderr.write(f"[{role}] {line}\n")
                sys.stderr.flush()

        return write

    def say(self, sentence: str) -> None:
        """A line of the supervisor's own."""
        self.console.print(Text(f"jetflock: {sentence}"))

    def show(self, block: str) -> None:
        sys.stdout.write(block)
        sys.stdout.flush()
