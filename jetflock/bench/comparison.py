"""Two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from jetflock.bench.result_file import Result
from jetflock.bench.stage_summary import Latency, StageSummary
from jetflock.bench.text_table import number, text_table


def _of(latency: Latency | None, name: str) -> float | None:
    return None if latency is None else float(getattr(latency, name))


_FIGURES: Mapping[str, Callable[[StageSummary], float | None]] = {
    "requests/s": lambda stage: stage.request_rate,
    "output tokens/s": lambda stage: stage.output_rate,
    "good requests/s": lambda stage: stage.good_rate,
    "failed requests": lambda stage: float(stage.num_failed),
    "TTFT p50 ms": lambda stage: _of(stage.ttft_ms, "p50"),
    "TTFT p99 ms": lambda stage: _of(stage.ttft_ms, "p99"),
    "ITL p50 ms": lambda stage: _of(stage.itl_ms, "p50"),
    "ITL p99 ms": lambda stage: _of(stage.itl_ms, "p99"),
    "TPOT p50 ms": lambda stage: _of(stage.tpot_ms, "p50"),
    "E2E p50 ms": lambda stage: _of(stage.e2e_ms, "p50"),
    "E2E p99 ms": lambda stage: _of(stage.e2e_ms, "p99"),
}


def compare(old: Result, new: Result) -> str:
    """A table for each stage that both have, by its label."""
    earlier = {stage.label: stage for stage in old.stages}
    lines: list[str] = []
    for stage in new.stages:
        if stage.label in earlier:
            head = [f"{stage.label}, against {old.date[:16]}", "old", "new", "new/old"]
            lines += ["", *text_table([head, *_rows(earlier[stage.label], stage)])]
        else:
            lines += ["", f"{stage.label}: the old run has no such stage"]
    differing = [
        f"{key} {old.settings.get(key)} and {value}"
        for key, value in new.settings.items()
        if old.settings.get(key) != value
    ]
    if differing:
        lines += ["", f"note: the runs differ in {', '.join(differing)}"]
    return "\n".join(lines) + "\n"


def _rows(old: StageSummary, new: StageSummary) -> Iterator[list[str]]:
    for name, figure in _FIGURES.items():
        before, after = figure(old), figure(new)
        if before is None and after is None:
            continue
        ratio = after / before if before and after is not None else None
        yield [name, number(before), number(after), "-" if ratio is None else f"{ratio:.2f}"]
