import pytest

from bench.engine import agreement
from bench.measurement import Measurement
from bench.peers.runner import RequestTrace
from bench.workloads import WORKLOADS, Workload

TWO = Workload("two", 2, 0, 4, 3)
W4 = WORKLOADS[3]


def test_a_run_becomes_speed_and_latencies() -> None:
    traces = [
        RequestTrace([1, 2, 3], [0.5, 0.6, 0.7]),
        RequestTrace([1, 2, 3], [1.0, 1.2, 2.0]),
    ]
    measurement = Measurement.of(TWO, traces, peak_bytes=7, cpu_s=1.5)
    assert measurement.cpu_s_per_token == 0.25
    assert measurement.tokens_per_s == 3.0  # six tokens in two seconds
    assert measurement.ttft_p50_s == 0.75
    assert measurement.itl_p50_s == pytest.approx(0.15)
    assert measurement.itl_p99_s == pytest.approx(0.782)  # between 0.2 and 0.8
    assert measurement.peak_bytes == 7


def test_missing_tokens_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="2 tokens came, 3 were asked for"):
        Measurement.of(TWO, [RequestTrace([1, 2], [0.1, 0.2])], peak_bytes=0, cpu_s=0.0)


def of_one_value(value: float, peak_bytes: int) -> Measurement:
    return Measurement(value, value, value, value, value, value, peak_bytes, value)


def test_the_median_is_taken_figure_by_figure() -> None:
    runs = [of_one_value(value, 10 - value) for value in (1, 5, 3)]
    assert Measurement.median(runs) == of_one_value(3.0, 7)


def test_agreement_ends_at_the_first_difference() -> None:
    ours = [RequestTrace([1, 2, 3, 4]), RequestTrace([1, 2, 3, 4])]
    theirs = [RequestTrace([1, 2, 3, 4]), RequestTrace([1, 9, 3, 4])]
    assert agreement(ours, theirs) == 5 / 8


def test_prompts_share_what_they_should_and_change_with_the_round() -> None:
    prompts = W4.prompts(49152, "0")
    assert [len(prompt) for prompt in prompts] == [1056] * 32
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prompts}) == 32
    assert W4.prompts(49152, "0") == prompts
    assert W4.prompts(49152, "1")[0][:1024] != prompts[0][:1024]
