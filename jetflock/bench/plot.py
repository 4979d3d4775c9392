"""What `--plot` draws: how latencies spread in a stage, or grow from stage to stage; its SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
WIDTH, HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, WIDTH - 26, 34, HEIGHT - 44  # of the plane
_NUM_TICKS = 5
_MAX_FINE_TICKS = 8
_HEAD_HEIGHT = 56
_NUM_COLORS = 4

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px }
.grid { stroke: #d8dee4 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
.s0 { stroke: #0969da; fill: #0969da } .s1 { stroke: #cf222e; fill: #cf222e }
.s2 { stroke: #1a7f37; fill: #1a7f37 } .s3 { stroke: #8250df; fill: #8250df }
.back { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .grid { stroke: #30363d } .back { fill: #0d1117 }
}
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


@dataclass(frozen=True, slots=True)
class Series:
    """A line through `points`, in the order of their x."""

    name: str
    points: Sequence[tuple[float, float]]
    has_marks: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel. Both axes begin at 0, but a logarithmic x axis at a power of ten."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_log_x: bool = False

    def svg(self, left: int, top: int) -> str:
        """A group at this place."""
        xs = [x for each in self.series for x, _ in each.points]
        ys = [y for each in self.series for _, y in each.points]
        x_ticks = log_ticks(xs) if self.is_log_x else ticks_from_zero(max(xs, default=1.0))
        scale = _Scale(x_ticks, ticks_from_zero(max(ys, default=1.0)), is_log_x=self.is_log_x)
        parts = [f'<g transform="translate({left} {top})">', *scale.grid(), *self._labels()]
        for idx, each in enumerate(self.series):
            parts += _line(each, idx % _NUM_COLORS, scale)
            parts += _legend(each.name, idx)
        return "\n".join([*parts, "</g>"])

    def _labels(self) -> list[str]:
        middle_x, middle_y = (_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2
        return [
            f'<text class="title" x="{_LEFT}" y="18">{html.escape(self.title)}</text>',
            f'<text x="{middle_x}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{html.escape(self.x_label)}</text>",
            f'<text transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle">'
            f"{html.escape(self.y_label)}</text>",
        ]


@dataclass(frozen=True, slots=True)
class _Scale:
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    is_log_x: bool

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        if self.is_log_x:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return round(_LEFT + (value - low) / (high - low) * (_RIGHT - _LEFT), 1)

    def y(self, value: float) -> float:
        return round(_BOTTOM - value / self.y_ticks[-1] * (_BOTTOM - _TOP), 1)

    def grid(self) -> Iterator[str]:
        for tick in self.x_ticks:
            x = self.x(tick)
            yield f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_BOTTOM}"/>'
            yield f'<text x="{x}" y="{_BOTTOM + 16}" text-anchor="middle">{_short(tick)}</text>'
        for tick in self.y_ticks:
            y = self.y(tick)
            yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_short(tick)}</text>'


def _line(series: Series, color: int, scale: _Scale) -> list[str]:
    points = [(scale.x(x), scale.y(y)) for x, y in series.points]
    drawn = " ".join(f"{x},{y}" for x, y in points)
    parts = [f'<polyline class="line s{color}" style="fill:none" points="{drawn}"/>']
    if series.has_marks:
        parts += [f'<circle class="s{color}" cx="{x}" cy="{y}" r="3"/>' for x, y in points]
    return parts


def _legend(name: str, idx: int) -> list[str]:
    y = _TOP + 12 + 16 * idx
    return [
        f'<rect class="s{idx % _NUM_COLORS}" x="{_LEFT + 8}" y="{y - 4}" width="14" height="3"/>',
        f'<text x="{_LEFT + 28}" y="{y}">{html.escape(name)}</text>',
    ]


def ticks_from_zero(high: float) -> list[float]:
    """Values from 0 to at least `high`, in steps of 1, 2 or 5 times a power of ten."""
    rough = max(high, 1e-9) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)] if high > 0 else [0.0, step]


def log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around all values above 0, or the powers alone."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    powers = [10.0**power for power in range(low, max(high, low + 1) + 1)]
    fine = [factor * power for power in powers[:-1] for factor in (1, 2, 5)] + powers[-1:]
    while len(fine) > 2 and fine[1] <= min(positive):
        fine.pop(0)
    while len(fine) > 2 and fine[-2] >= max(positive):
        fine.pop()
    return fine if len(fine) <= _MAX_FINE_TICKS else powers


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def svg_of(charts: Sequence[Chart], heading: str, detail: str) -> str:
    """Panels in rows of two below two lines of text."""
    num_rows = (len(charts) + 1) // 2
    width, height = WIDTH * min(2, len(charts)), HEIGHT * num_rows + _HEAD_HEIGHT
    panels = [
        chart.svg(WIDTH * (idx % 2), _HEAD_HEIGHT + HEIGHT * (idx // 2))
        for idx, chart in enumerate(charts)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<style>{STYLE}</style>",
            f'<rect class="back" width="{width}" height="{height}"/>',
            f'<text class="title" x="16" y="22">{html.escape(heading)}</text>',
            f'<text x="16" y="40">{html.escape(detail)}</text>',
            *panels,
            "</svg>",
        ]
    )
