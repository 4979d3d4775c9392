"""What happens while a stack starts: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from deploy.local.terminal import Terminal


class StartupProgress:
    """One line a part: nats, streams, model card, detok, frontend, each worker."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._started_at = time.monotonic()
        self._tasks: dict[str, TaskID] = {}
        self._phases: dict[str, str] = {}
        # Refreshed by `tick`, not by a thread: see die_with_parent.py.
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[phase]}"),
            console=terminal.console,
            auto_refresh=False,
            transient=True,
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def begin(self) -> None:
        if self._terminal.is_interactive:
            self._bars.start()

    def update(self, part: str, phase: str, fraction: float | None = None) -> None:
        """`part` is doing `phase`; `fraction` of it is done, when that is known."""
        self._show(part, phase, None if fraction is None else min(fraction, 0.99))

    def finish(self, part: str, phase: str = "ready") -> None:
        self._show(part, phase, 1.0)

    def tick(self) -> None:
        if self._terminal.is_interactive:
            self._bars.refresh()

    def end(self) -> None:
        if self._terminal.is_interactive:
            self._bars.stop()

    def _show(self, part: str, phase: str, fraction: float | None) -> None:
        is_news = self._phases.get(part) != phase
        self._phases[part] = phase
        if not self._terminal.is_interactive:
            if is_news:
                self._terminal.say(f"{part}: {phase} ({self.elapsed_s:.1f} s)")
            return
        if part not in self._tasks:
            self._tasks[part] = self._bars.add_task(part, total=None, phase=phase)
        total = None if fraction is None else 1.0
        self._bars.update(self._tasks[part], total=total, completed=fraction or 0.0, phase=phase)
        self._bars.refresh()
