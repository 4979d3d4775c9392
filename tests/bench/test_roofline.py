import pytest

from bench.model_shape import LLAMA_135M
from bench.roofline import Ceilings, roofline_s
from bench.workloads import WORKLOADS, Workload

W1, W2, W3, W4, W5, *_ = WORKLOADS


def test_the_135m_shape_has_134_5_million_parameters() -> None:
    assert LLAMA_135M.num_layer_parameters == 106_168_320
    assert LLAMA_135M.num_head_parameters == 28_311_552


def test_one_request_is_bound_by_reading_the_weights() -> None:
    fast_cores = Ceilings(read_bytes_per_s=50e9, flops_per_s=1e18)
    one_token = Workload("one", 1, 0, 1, 2)
    weight_bytes = 2 * (106_168_320 + 28_311_552)
    kv_bytes = 2 * 2 * 30 * 3 * 64 * 2  # a step over two tokens
    seconds = roofline_s(one_token, LLAMA_135M, fast_cores, bytes_per_value=2)
    assert seconds == pytest.approx((2 * weight_bytes + kv_bytes) / 50e9)


def test_shared_tokens_are_computed_once() -> None:
    fast_memory = Ceilings(read_bytes_per_s=1e18, flops_per_s=427e9)
    unshared = Workload("unshared", W4.num_requests, 0, W4.prompt_len, 1)
    shared = Workload("shared", W4.num_requests, W4.shared_len, W4.own_len, 1)
    slow = roofline_s(unshared, LLAMA_135M, fast_memory, bytes_per_value=2)
    quick = roofline_s(shared, LLAMA_135M, fast_memory, bytes_per_value=2)
    assert 10 < slow / quick < W4.num_requests


@pytest.mark.parametrize(
    ("workload", "tokens_per_s"), [(W1, 169), (W2, 859), (W3, 859), (W4, 494), (W5, 1507)]
)
def test_it_agrees_with_the_figures_once_computed_by_hand(
    workload: Workload, tokens_per_s: float
) -> None:
    """50 GB/s and 427 GFLOP/s; the rounding of lengths makes the difference."""
    ceilings = Ceilings(read_bytes_per_s=50e9, flops_per_s=427e9)
    seconds = roofline_s(workload, LLAMA_135M, ceilings, bytes_per_value=2)
    assert workload.num_counted_tokens / seconds == pytest.approx(tokens_per_s, rel=0.06)
