"""What a refused client is told to wait follows from how fast the queue was worked off."""

from __future__ import annotations

import pytest

from frontend.inference.admission.drain_rate import DrainRate, Sample


def drain(*samples: tuple[float, int, int]) -> DrainRate:
    rate = DrainRate()
    for sample in samples:
        rate.add(Sample(*sample))
    return rate


@pytest.mark.parametrize(
    ("samples", "num_requests", "retry_after_s"),
    [
        ((), 1, 120),  # nothing is known
        (((0, 100, 0), (10, 100, 0)), 1, 120),  # nothing moves
        (((0, 100, 0), (10, 100, 20)), 1, 5),  # 2/s, a tenth of 100
        (((0, 100, 0), (10, 100, 20)), 40, 20),  # a group that needs more room
        (((0, 100, 0), (10, 100, 1000)), 1, 1),
        (((0, 100_000, 0), (10, 100_000, 20)), 1, 120),
    ],
)
def test_retry_after(
    samples: tuple[tuple[float, int, int], ...], num_requests: int, retry_after_s: int
) -> None:
    assert drain(*samples).retry_after_s(num_requests) == retry_after_s


def test_only_the_last_half_minute_counts() -> None:
    samples = [(float(s), 50, 10 * s) for s in range(60)]
    stopped = [(float(60 + s), 50, 590) for s in range(15)]
    assert drain(*samples).per_s == 10
    assert 4 < drain(*samples, *stopped).per_s < 6
    assert drain(*samples, *stopped, (90.0, 50, 590)).per_s < 1
