"""The figures of a stage, from the records of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from jetflock.bench.load_runner import StageRun
from jetflock.bench.slo import Slo


def percentile(values: Sequence[float], percent: float) -> float:
    """Reckons as numpy and the benchmarks of vLLM and SGLang do; `values` in any order, not empty.

    Between the two nearest ranks it is linear.
    """
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[float], percent: float) -> float:
    """The same, for values that are in order."""
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    if low + 1 == len(ordered):
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (rank - low)


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds, of `num` values."""

    num: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Latency | None:
        """None of no values."""
        ordered = sorted(values_s)
        if not ordered:
            return None
        p50, p90, p99 = (percentile_of_sorted(ordered, percent) * 1e3 for percent in (50, 90, 99))
        mean = sum(ordered) / len(ordered) * 1e3
        return cls(len(ordered), mean, p50, p90, p99, ordered[-1] * 1e3)


class Generator(msgspec.Struct, frozen=True):
    """What the load cost here, and how late it was."""

    cpu_share: float  # of one core
    cpu_us_per_token: float | None
    send_lag_ms: Latency | None  # an open loop's: from due to sent; with a cap, the wait for it


class StageSummary(msgspec.Struct, frozen=True):
    """Rates are over `duration_s`, from the start of the stage to its last answer.

    Latencies and tokens are those of the requests that were answered to their end.
    """

    label: str
    concurrency: int | None  # as asked for
    rate: float | None
    duration_s: float
    num_ok: int
    num_failed: int
    errors: dict[str, int]
    first_messages: dict[str, str]  # by error
    num_refused: int  # answers 429, also those that were waited out
    request_rate: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    has_usage: bool  # else output tokens are chunks, and prompt tokens unknown
    tokens_per_chunk: float | None
    output_rate: float  # tokens a second
    total_rate: float
    mean_running: float  # requests sent and not yet answered
    max_running: int
    ttft_ms: Latency | None
    itl_ms: Latency | None
    tpot_ms: Latency | None
    e2e_ms: Latency | None
    good_rate: float | None  # requests a second within the SLO
    good_share: float | None  # of all requests
    generator: Generator

    @property
    def error_rate(self) -> float:
        num = self.num_ok + self.num_failed
        return self.num_failed / num if num else 1.0


def summarize(run: StageRun, slo: Slo | None) -> StageSummary:
    """The figures of a run, even of one that was broken off."""
    ok = [record for record in run.records if record.is_ok]
    failed = [record for record in run.records if not record.is_ok]
    duration_s = max(run.ended_at - run.started_at, 1e-9)
    output_tokens = sum(record.num_tokens_made for record in ok)
    prompt_tokens = sum(record.num_prompt_tokens or 0 for record in ok)
    cached = [each.num_cached_tokens for each in ok if each.num_cached_tokens is not None]
    num_chunks = sum(len(record.arrivals) for record in ok)
    num_good = None if slo is None else sum(map(slo.is_kept, run.records))
    stage = run.stage
    return StageSummary(
        label=stage.label,
        concurrency=stage.concurrency,
        rate=stage.rate,
        duration_s=duration_s,
        num_ok=len(ok),
        num_failed=len(failed),
        errors=dict(Counter(record.error for record in failed).most_common()),
        first_messages={record.error: record.message for record in reversed(failed)},
        num_refused=sum(record.num_refused + (record.status == 429) for record in run.records),
        request_rate=len(ok) / duration_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output_tokens,
        has_usage=all(record.num_prompt_tokens is not None for record in ok),
        tokens_per_chunk=output_tokens / num_chunks if num_chunks else None,
        output_rate=output_tokens / duration_s,
        total_rate=(prompt_tokens + output_tokens) / duration_s,
        mean_running=sum(each.ended_at - each.sent_at for each in run.records) / duration_s,
        max_running=run.max_running,
        ttft_ms=Latency.of(value for each in ok if (value := each.ttft_s) is not None),
        itl_ms=Latency.of(gap for each in ok for gap in each.gaps_s),
        tpot_ms=Latency.of(value for each in ok if (value := each.tpot_s) is not None),
        e2e_ms=Latency.of(each.e2e_s for each in ok),
        good_rate=None if num_good is None else num_good / duration_s,
        good_share=None if num_good is None else num_good / max(1, len(run.records)),
        generator=_generator(run, duration_s, output_tokens),
    )


def _generator(run: StageRun, duration_s: float, num_tokens: int) -> Generator:
    is_open = run.stage.rate is not None
    return Generator(
        cpu_share=run.cpu_s / duration_s,
        cpu_us_per_token=run.cpu_s / num_tokens * 1e6 if num_tokens else None,
        send_lag_ms=Latency.of(each.lag_s for each in run.records) if is_open else None,
    )
