"""Ages by the clock of a stream's leader: never too great, whatever the servers' clocks say."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.broker.stream_info import ClockReading, parse_time
from shared.errors import BrokerUnavailable

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SKEWS_S = st.floats(-3600, 3600)


class Leaders:
    """One leader after the other, each with a clock of its own."""

    def __init__(self, tenures: list[tuple[float, float]]) -> None:
        """(how long it leads, how far its clock is ahead), both in seconds."""
        self.skews_s = [skew_s for _, skew_s in tenures]
        self.since_s = [sum(length for length, _ in tenures[:idx]) for idx in range(len(tenures))]

    def shown(self, idx: int, at_s: float) -> datetime.datetime:
        """The clock of a leader at a true time."""
        return EPOCH + datetime.timedelta(seconds=at_s + self.skews_s[idx])

    def info(self, idx: int, at_s: float) -> dict[str, Any]:
        return {
            "ts": _text(self.shown(idx, at_s)),
            "cluster": {
                "raft_group": "S-R3F-x",
                "leader": f"n{idx}",
                "leader_since": _text(self.shown(idx, self.since_s[idx])),
            },
        }


@given(
    st.lists(st.tuples(st.floats(0, 1000), SKEWS_S), min_size=1, max_size=4),
    st.data(),
)
def test_no_age_is_greater_than_the_truth(
    tenures: list[tuple[float, float]], data: st.DataObject
) -> None:
    leaders = Leaders(tenures)
    stored_by, read_by = sorted(
        data.draw(st.tuples(*[st.integers(0, len(tenures) - 1)] * 2), label="leaders")
    )
    stored_at_s = leaders.since_s[stored_by] + data.draw(
        st.floats(0, 1) if stored_by == read_by else st.floats(0, tenures[stored_by][0])
    )
    read_at_s = max(stored_at_s, leaders.since_s[read_by]) + data.draw(st.floats(0, 1000))
    reading = ClockReading.of_info(leaders.info(read_by, read_at_s))
    before = reading.reading_age_s
    age_s = reading.age_s(leaders.shown(stored_by, stored_at_s))
    true_age_s = read_at_s - stored_at_s
    assert age_s <= true_age_s + reading.reading_age_s + 1e-3
    if stored_by == read_by:  # and under one leader it is the truth
        assert age_s >= true_age_s + before - 1e-3


def test_a_reading_goes_on_by_our_own_clock() -> None:
    now = datetime.datetime.now(datetime.UTC)
    reading = ClockReading(now, None, read_at=time.monotonic() - 40.0)
    assert reading.age_s(now - datetime.timedelta(seconds=2)) == pytest.approx(42.0, abs=1.0)
    assert reading.age_s(now + datetime.timedelta(hours=1)) == 0.0


def test_who_knows_no_leader_tells_no_time() -> None:
    followers = {"ts": _text(EPOCH), "cluster": {"raft_group": "S-R3F-x", "replicas": []}}
    with pytest.raises(BrokerUnavailable, match="no leader"):
        ClockReading.of_info(followers)
    for alone in ({}, {"cluster": {"name": "c", "leader": "n1"}}):  # one server, or one replica
        assert ClockReading.of_info({"ts": _text(EPOCH), **alone}).leader_since is None


def _text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("", 0), (".5", 500_000), (".01", 10_000), (".123456789", 123_456), (".9999999", 999_999)],
)
def test_a_stamp_has_as_many_digits_as_it_needs(text: str, microseconds: int) -> None:
    assert parse_time(f"2026-01-01T00:00:00{text}Z") == EPOCH.replace(microsecond=microseconds)
