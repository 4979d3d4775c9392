"""Percentiles, latencies and goodput of given records, to the last digit."""

from __future__ import annotations

import random
from array import array

import pytest

from jetflock.bench.load_runner import StageRun, arrival_times_s
from jetflock.bench.load_stage import LoadStage, swept
from jetflock.bench.plot import log_ticks, ticks_from_zero
from jetflock.bench.prompt import Lengths, UniformLengths, sharegpt_like
from jetflock.bench.request_record import RequestRecord
from jetflock.bench.slo import Slo
from jetflock.bench.stage_summary import StageSummary, percentile, summarize
from shared.errors import ConfigError


def make_record(
    due_at: float, arrivals: list[float], num_tokens: int | None = None, error: str = ""
) -> RequestRecord:
    return RequestRecord(
        due_at=due_at,
        sent_at=due_at + 0.5,
        ended_at=arrivals[-1] + 0.25 if arrivals else due_at + 1,
        finished_at=arrivals[-1] if arrivals else 0.0,
        status=500 if error else 200,
        error=error,
        arrivals=array("d", arrivals),
        num_prompt_tokens=10,
        num_output_tokens=num_tokens,
        num_cached_tokens=4,
    )


def make_summary(*records: RequestRecord, slo: Slo | None = None) -> StageSummary:
    run = StageRun(LoadStage(None, rate=2.0), 0.0, list(records), ended_at=4.0, cpu_s=1.0)
    return summarize(run, slo)


def test_percentiles_are_interpolated() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, p) for p in (0, 50, 90, 100)] == [1.0, 2.5, pytest.approx(3.7), 4.0]
    assert percentile([7.0], 99) == 7.0


def test_latencies_count_from_when_a_request_was_due() -> None:
    record = make_record(1.0, [2.0, 2.5, 4.0], num_tokens=5)
    assert record.ttft_s == 1.0
    assert record.e2e_s == 3.25
    assert record.tpot_s == 0.5  # 2 s for 4 tokens, in two chunks
    assert record.gaps_s == [0.5, 1.5]
    assert record.lag_s == 0.5


def test_tokens_that_show_no_text_count_for_the_time_per_token() -> None:
    record = make_record(0.0, [1.0], num_tokens=11)
    record.finished_at = 2.0
    assert record.tpot_s == 0.1


def test_a_stage_is_summed_up() -> None:
    summary = make_summary(
        make_record(0.0, [1.0, 2.0], 2),
        make_record(1.0, [1.5, 2.5, 3.5], 6),
        make_record(2.0, [], error="http 500"),
    )
    assert (summary.num_ok, summary.num_failed, summary.errors) == (2, 1, {"http 500": 1})
    assert summary.error_rate == pytest.approx(1 / 3)
    assert (summary.request_rate, summary.output_rate, summary.total_rate) == (0.5, 2.0, 7.0)
    assert (summary.prompt_tokens, summary.cached_tokens) == (20, 8)
    assert summary.tokens_per_chunk == 8 / 5
    assert summary.ttft_ms is not None
    assert (summary.ttft_ms.mean, summary.ttft_ms.p50, summary.ttft_ms.max) == (750, 750, 1000)
    assert summary.itl_ms is not None
    assert (summary.itl_ms.num, summary.itl_ms.p99) == (3, 1000)
    assert summary.tpot_ms is not None
    assert summary.tpot_ms.p50 == pytest.approx(700)
    assert summary.mean_running == pytest.approx((1.75 + 2.25 + 0.5) / 4)
    assert summary.generator.cpu_us_per_token == 125_000
    assert summary.generator.send_lag_ms is not None
    assert summary.generator.send_lag_ms.p50 == 500


def test_nothing_finished_is_no_error_of_arithmetic() -> None:
    summary = make_summary(make_record(0.0, [], error="timeout"))
    assert summary.ttft_ms is summary.itl_ms is summary.tpot_ms is summary.e2e_ms is None
    assert summary.error_rate == 1.0
    assert make_summary().error_rate == 1.0


def test_goodput_counts_requests_that_keep_all_limits() -> None:
    slo = Slo.parse(("ttft:1000,tpot:500", "itl:1000"))
    summary = make_summary(
        make_record(0.0, [1.0, 1.5], 2),  # all kept
        make_record(0.0, [1.1, 1.5], 2),  # late
        make_record(0.0, [0.5, 2.0], 9),  # a long gap
        make_record(0.0, [0.5, 1.5], 2),  # a second a token
        make_record(0.0, [], error="cut"),
        slo=slo,
    )
    assert (summary.good_rate, summary.good_share) == (0.25, 0.2)


@pytest.mark.parametrize("word", ["ttft", "ttft:x", "first:5", "ttft:0", "e2el:inf"])
def test_a_limit_that_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="goodput"):
        Slo.parse((word,))


def test_no_limits_are_no_slo() -> None:
    assert Slo.parse(()) is None


def test_poisson_and_bursty_arrivals_have_the_same_rate() -> None:
    for burstiness, squared_deviation in ((1.0, 1.0), (0.25, 4.0), (4.0, 0.25)):
        times = arrival_times_s(5.0, burstiness, random.Random(1))
        moments = [next(times) for _ in range(20_000)]
        pauses = [b - a for a, b in zip([0.0, *moments], moments, strict=False)]
        mean = sum(pauses) / len(pauses)
        variance = sum((pause - mean) ** 2 for pause in pauses) / len(pauses)
        assert mean == pytest.approx(0.2, rel=0.05)
        assert variance / mean**2 == pytest.approx(squared_deviation, rel=0.1)


def test_lengths_stay_in_their_range() -> None:
    rng = random.Random(0)
    assert UniformLengths(100, 20).draw(rng) == Lengths(100, 20)
    drawn = {UniformLengths(10, 4, 0.5).draw(rng) for _ in range(500)}
    assert {each.input_len for each in drawn} == set(range(5, 16))
    assert {each.output_len for each in drawn} == {2, 3, 4, 5, 6}


def test_shared_chats_have_the_percentiles_of_their_source() -> None:
    rng = random.Random(0)
    drawn = [sharegpt_like(None).draw(rng) for _ in range(20_000)]
    inputs, outputs = zip(*drawn, strict=True)
    assert percentile(inputs, 50) == pytest.approx(1730, rel=0.03)
    assert percentile(inputs, 90) == pytest.approx(5696, rel=0.04)
    assert percentile(outputs, 50) == pytest.approx(415, rel=0.03)
    assert percentile(outputs, 90) == pytest.approx(834, rel=0.04)


def test_lengths_fit_the_context() -> None:
    rng = random.Random(0)
    assert all(sum(sharegpt_like(2048).draw(rng)) <= 2048 for _ in range(1000))
    with pytest.raises(ConfigError, match="a context of 8 tokens is too short"):
        sharegpt_like(8).draw(rng)


def test_a_sweep_is_a_stage_for_each_value() -> None:
    stage = LoadStage(3, num_requests=9)
    assert swept(stage, None) == [stage]
    assert [each.concurrency for each in swept(stage, "1,2,8")] == [1, 2, 8]
    rates = swept(stage, "rate:0.5,2")
    assert [(each.rate, each.concurrency) for each in rates] == [(0.5, 3), (2.0, 3)]
    for wrong in ("", "1,x", "speed:1", "0", "1.5"):
        with pytest.raises(ConfigError, match="sweep"):
            swept(stage, wrong)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([17.0, 57.0], [10.0, 20.0, 50.0, 100.0]),
        ([20.0, 50.0], [20.0, 50.0]),
        ([0.0], [1.0, 2.0]),
        ([0.3, 900.0], [0.1, 1.0, 10.0, 100.0, 1000.0]),
    ],
)
def test_ticks_of_a_logarithmic_axis_hold_all_values(
    values: list[float], ticks: list[float]
) -> None:
    assert log_ticks(values) == pytest.approx(ticks)


def test_ticks_from_zero_hold_the_highest_value() -> None:
    assert ticks_from_zero(307.0) == [0, 100, 200, 300, 400]
    assert ticks_from_zero(1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert len(ticks_from_zero(0.0)) == 2
