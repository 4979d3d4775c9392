"""The file that `--json` writes and `--compare` reads, and two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jetflock.bench.load_runner import StageRun
from jetflock.bench.stage_summary import Latency, StageSummary
from jetflock.bench.text_table import number, text_table
from shared.errors import ConfigError

FORMAT = 1


class Result(msgspec.Struct, frozen=True):
    """A whole run. Latencies are in milliseconds, rates per second."""

    format: int
    made_by: str
    date: str  # ISO 8601
    url: str
    model: str
    endpoint: str
    prompts: str  # what they were made of, and how their tokens were counted
    settings: dict[str, Any]
    stages: list[StageSummary]
    requests: list[list[dict[str, Any]]] | None = None  # of each stage

    def write(self, path: Path) -> None:
        """Raises ConfigError."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        try:
            path.write_bytes(content + b"\n")
        except OSError as exc:
            raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises ConfigError."""
        try:
            result = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
        except msgspec.DecodeError as exc:
            raise ConfigError(f"{path} was not written by --json of this command: {exc}") from exc
        if result.format != FORMAT:
            raise ConfigError(f"{path} has format {result.format}, this version reads {FORMAT}")
        return result


def request_figures(runs: Sequence[StageRun]) -> list[list[dict[str, Any]]]:
    """A row for each request, stage by stage; times in seconds from the start of the stage."""
    return [
        [
            {
                "due_s": record.due_at - run.started_at,
                "sent_s": record.sent_at - run.started_at,
                "ended_s": record.ended_at - run.started_at,
                "status": record.status,
                "error": record.error or None,
                "ttft_s": record.ttft_s,
                "tpot_s": record.tpot_s,
                "max_itl_s": max(record.gaps_s, default=None),
                "e2e_s": record.e2e_s,
                "prompt_tokens": record.num_prompt_tokens,
                "cached_tokens": record.num_cached_tokens,
                "output_tokens": record.num_tokens_made,
                "refused": record.num_refused,
            }
            for record in run.records
        ]
        for run in runs
    ]


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
