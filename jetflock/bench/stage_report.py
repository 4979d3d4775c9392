"""What a person reads of the stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jetflock.bench.stage_summary import Latency, StageSummary
from jetflock.bench.text_table import number, text_table

_BUSY = 0.7  # of a core: from here on the generator may be what is measured
_LATE_MS = 10.0
_MANY_TOKENS = 1.05  # in a chunk: then ITL is not the time of a token


def report(stages: Sequence[StageSummary]) -> str:
    """One stage in full, or a line for each of several."""
    blocks = [_stage(stages[0])] if len(stages) == 1 else [_sweep(stages)]
    notes = [*_note_on_chunks(stages), *(note for stage in stages for note in _notes(stage))]
    notes = list(dict.fromkeys(notes))
    return "\n".join([*blocks, *(f"note: {note}" for note in notes)]) + "\n"


def _stage(stage: StageSummary) -> str:
    lines = [f"{stage.label}, {stage.duration_s:.1f} s", ""]
    lines += text_table(list(_totals(stage)))
    head = ["ms", "mean", "p50", "p90", "p99", "max"]
    rows = [[name, *_cells(latency)] for name, latency in _latencies(stage)]
    if rows:
        lines += ["", *text_table([head, *rows])]
    return "\n".join([*lines, ""])


def _totals(stage: StageSummary) -> Iterator[list[str]]:
    yield ["requests answered", f"{stage.num_ok:,}", f"{number(stage.request_rate)} /s"]
    if stage.num_failed:
        yield ["requests failed", f"{stage.num_failed:,}", f"{stage.error_rate:.1%}"]
    for error, count in stage.errors.items():
        yield [f"  {error}", f"{count:,}", ""]
    if stage.num_refused:
        yield ["answers 429", f"{stage.num_refused:,}", ""]
    if stage.good_rate is not None and stage.good_share is not None:
        yield ["good requests", f"{stage.good_share:.1%}", f"{number(stage.good_rate)} /s"]
    if stage.prompt_tokens:
        yield ["prompt tokens", f"{stage.prompt_tokens:,}", ""]
    if stage.cached_tokens is not None and stage.prompt_tokens:
        share = stage.cached_tokens / stage.prompt_tokens
        yield ["  from a cache", f"{stage.cached_tokens:,}", f"{share:.1%}"]
    if stage.output_tokens:
        name = "output tokens" if stage.has_usage else "output chunks"
        yield [name, f"{stage.output_tokens:,}", f"{number(stage.output_rate)} /s"]
    yield ["all tokens", "", f"{number(stage.total_rate)} /s"]
    running = f"{stage.mean_running:.1f} mean"
    yield ["requests at a time", running, f"{stage.max_running} max"]


def _latencies(stage: StageSummary) -> Iterator[tuple[str, Latency]]:
    named = (
        ("time to first token (TTFT)", stage.ttft_ms),
        ("between chunks (ITL)", stage.itl_ms),
        ("per output token (TPOT)", stage.tpot_ms),
        ("whole request (E2E)", stage.e2e_ms),
        ("sent after due", stage.generator.send_lag_ms),
    )
    return ((name, latency) for name, latency in named if latency is not None)


def _cells(latency: Latency) -> list[str]:
    values = (latency.mean, latency.p50, latency.p90, latency.p99, latency.max)
    return [number(value) for value in values]


def _sweep(stages: Sequence[StageSummary]) -> str:
    head = ["load", "failed", "req/s", "tok/s", "running", "TTFT p50", "p99", "ITL p50", "p99"]
    head += ["TPOT p50", "E2E p50", "p99"]
    has_slo = any(stage.good_share is not None for stage in stages)
    rows = [head + (["good", "good/s"] if has_slo else [])]
    for stage in stages:
        ttft, itl, e2e = stage.ttft_ms, stage.itl_ms, stage.e2e_ms
        row = [stage.label, f"{stage.num_failed:,}", number(stage.request_rate)]
        row += [number(stage.output_rate), f"{stage.mean_running:.1f}"]
        for latency in (ttft, itl):
            row += ["-", "-"] if latency is None else [number(latency.p50), number(latency.p99)]
        row.append("-" if stage.tpot_ms is None else number(stage.tpot_ms.p50))
        row += ["-", "-"] if e2e is None else [number(e2e.p50), number(e2e.p99)]
        if has_slo:
            row += [f"{stage.good_share or 0:.1%}", number(stage.good_rate)]
        rows.append(row)
    return "\n".join([*text_table(rows), "", "latencies in ms", ""])


def _note_on_chunks(stages: Sequence[StageSummary]) -> Iterator[str]:
    most = max(stage.tokens_per_chunk or 0.0 for stage in stages)
    if most > _MANY_TOKENS:
        yield (
            f"a chunk stands for up to {most:.2f} tokens on average: ITL is the time between "
            "chunks, TPOT that of a token"
        )


def _notes(stage: StageSummary) -> Iterator[str]:
    for error, message in stage.first_messages.items():
        yield f"the first {error}: {message}"
    if not stage.has_usage and stage.num_ok:
        yield "the server sends no usage: chunks are counted in place of tokens"
    generator = stage.generator
    if generator.cpu_share > _BUSY:
        yield (
            f"{stage.label}: this load generator used {generator.cpu_share:.0%} of a core; run "
            "several with a part of the load each"
        )
    lag = generator.send_lag_ms
    if lag is not None and lag.p99 > _LATE_MS:
        yield (
            f"{stage.label}: of the requests, 1 % were sent {lag.p99:.0f} ms after they were due, "
            "or later; all latencies count from when they were due"
        )
