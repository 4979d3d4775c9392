"""What `--plot` draws: how latencies spread in a stage, or how they grow from stage to stage."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from jetflock.bench.chart import Chart, Series, svg_of
from jetflock.bench.load_runner import StageRun
from jetflock.bench.stage_report import report
from jetflock.bench.stage_summary import StageSummary
from shared.errors import ConfigError

_MAX_POINTS = 400  # of a line
_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem }}
pre {{ overflow-x: auto }} svg {{ max-width: 100%; height: auto }}
</style>
{svg}
<pre>{text}</pre>
</html>
"""


def write_plot(
    path: Path,
    heading: str,
    detail: str,
    runs: Sequence[StageRun],
    stages: Sequence[StageSummary],
) -> None:
    """Writes an .svg, or an .html page with the figures. Raises ConfigError."""
    charts = _spreads(runs[0]) if len(runs) == 1 else _curves(stages)
    content = svg_of(charts, heading, detail)
    if path.suffix == ".html":
        text = html.escape(report(stages))
        content = _PAGE.format(title=html.escape(heading), svg=content, text=text)
    try:
        path.write_text(content + "\n")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc


def _spreads(run: StageRun) -> list[Chart]:
    """The share of requests, or gaps, that took at most so long."""
    ok = [record for record in run.records if record.is_ok]
    measures: dict[str, Iterable[float | None]] = {
        "time to first token": (record.ttft_s for record in ok),
        "between chunks (ITL)": (gap for record in ok for gap in record.gaps_s),
        "per output token (TPOT)": (record.tpot_s for record in ok),
        "whole request": (record.e2e_s for record in ok),
    }
    charts = []
    for title, values_s in measures.items():
        ordered = sorted(value * 1e3 for value in values_s if value is not None)
        if ordered:
            series = Series(f"{len(ordered):,} values", _cumulated(ordered))
            charts.append(Chart(title, "ms", "share of values", [series], is_log_x=True))
    return charts


def _cumulated(ordered: Sequence[float]) -> list[tuple[float, float]]:
    num = len(ordered)
    ranks = range(num) if num <= _MAX_POINTS else _spaced(num)
    return [(ordered[0], 0.0), *((ordered[rank], (rank + 1) / num) for rank in ranks)]


def _spaced(num: int) -> list[int]:
    """Ranks at even distance, the last one among them."""
    return [round(i * (num - 1) / (_MAX_POINTS - 1)) for i in range(_MAX_POINTS)]


def _curves(stages: Sequence[StageSummary]) -> list[Chart]:
    """A point for each stage, in the order of the sweep."""
    measures = {
        "time to first token": [(stage, stage.ttft_ms) for stage in stages],
        "per output token (TPOT)": [(stage, stage.tpot_ms) for stage in stages],
        "whole request": [(stage, stage.e2e_ms) for stage in stages],
    }
    charts = []
    for title, found in measures.items():
        p50 = [(stage.output_rate, latency.p50) for stage, latency in found if latency]
        p99 = [(stage.output_rate, latency.p99) for stage, latency in found if latency]
        if p50:
            lines = [Series("p50", p50, has_marks=True), Series("p99", p99, has_marks=True)]
            charts.append(Chart(title, "output tokens a second", "ms", lines))
    is_rate = stages[0].rate is not None
    offered = [float(stage.rate or stage.concurrency or 0) for stage in stages]
    rates = [stage.output_rate for stage in stages]
    points = list(zip(offered, rates, strict=True))
    label = "requests a second, offered" if is_rate else "requests at a time"
    series = [Series("output tokens a second", points, has_marks=True)]
    charts.append(Chart("throughput", label, "tokens a second", series))
    return charts
