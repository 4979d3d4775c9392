"""What happens while a stack starts: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from deploy.local.start_times import StartTimes
from deploy.local.terminal import Terminal

_MIN_FRACTION = 0.02  # before it, how long the rest takes is a guess


@dataclass(slots=True)
class _Doing:
    """What a part is doing, since when, and how far it was then."""

    phase: str
    since_s: float
    from_fraction: float


class StartupProgress:
    """One line a part: nats, streams, model card, detok, frontend, each worker."""

    def __init__(self, terminal: Terminal, times: StartTimes) -> None:
        self.times = times
        self._terminal = terminal
        self._tasks: dict[str, TaskID] = {}
        self._doing: dict[str, _Doing] = {}
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

    def begin(self) -> None:
        if self._terminal.is_interactive:
            self._bars.start()

    def update(
        self, part: str, phase: str, fraction: float | None = None, num_bytes: int = 0
    ) -> None:
        """`part` is doing `phase`; `fraction` of it, or of `num_bytes`, is done, when known."""
        self.times.begin(part)
        self._show(part, phase, None if fraction is None else min(fraction, 0.99), num_bytes)

    def finish(
        self, part: str, phase: str = "ready", phases: Mapping[str, float] | None = None
    ) -> None:
        """`phases` are those that the part itself has measured."""
        self.times.end(part, phases)
        self._show(part, phase, 1.0, 0)

    def tick(self) -> None:
        if self._terminal.is_interactive:
            self._bars.refresh()

    def end(self) -> None:
        if self._terminal.is_interactive:
            self._bars.stop()

    def _show(self, part: str, phase: str, fraction: float | None, num_bytes: int) -> None:
        now_s = self.times.now_s
        doing = self._doing.get(part)
        if doing is None or doing.phase != phase:
            doing = self._doing[part] = _Doing(phase, now_s, fraction or 0.0)
            if not self._terminal.is_interactive:
                self._terminal.say(f"{part}: {phase} ({now_s:.1f} s)")
        if not self._terminal.is_interactive:
            return
        if part not in self._tasks:
            self._tasks[part] = self._bars.add_task(part, total=None, phase=phase)
        text = phase
        if fraction is not None and num_bytes:
            rest_s = time_left_s(now_s - doing.since_s, fraction - doing.from_fraction, fraction)
            text = f"{phase}, {amount_done(fraction, num_bytes, rest_s)}"
        total = None if fraction is None else 1.0
        self._bars.update(self._tasks[part], total=total, completed=fraction or 0.0, phase=text)
        self._bars.refresh()


def time_left_s(elapsed_s: float, gained: float, fraction: float) -> float | None:
    """At the pace so far: `gained` in `elapsed_s`; None while that tells little."""
    if gained < _MIN_FRACTION:
        return None
    return elapsed_s * (1.0 - fraction) / gained


def amount_done(fraction: float, num_bytes: int, rest_s: float | None) -> str:
    """`0.6 of 2.5 GB, 14 s left`."""
    unit, name = (1e9, "GB") if num_bytes >= 1e9 else (1e6, "MB")
    done = f"{fraction * num_bytes / unit:.1f} of {num_bytes / unit:.1f} {name}"
    return done if rest_s is None else f"{done}, {rest_s:.0f} s left"
