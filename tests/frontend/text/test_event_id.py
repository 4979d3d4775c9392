"""Event ids: what a client is given, it can give back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.text.event_id import EventId, Mark, parse_event_id
from shared.errors import InvalidRequest
from shared.protocol.text import checksum

RID = "0123456789abcdef" * 2
marks = st.builds(Mark, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, (1 << 32) - 1))


@given(st.lists(marks, min_size=1, max_size=20))
def test_round_trip(choices: list[Mark]) -> None:
    event_id = EventId(RID, tuple(choices))
    assert parse_event_id(str(event_id)) == event_id


def test_form() -> None:
    event_id = EventId(RID, (Mark(1, 2, 0xAB), Mark(0, 0, 0)))
    assert str(event_id) == f"{RID}.1.2.000000ab_0.0.00000000"


@given(st.text(), st.text())
def test_the_checksum_runs_on(first: str, second: str) -> None:
    assert checksum(second, checksum(first)) == checksum(first + second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        RID,
        f"{RID}.",
        f"{RID}.1.2",
        f"{RID}.1.2.xyz",
        f"{RID}.1.2.000000AB",
        f"{RID}.1.2.000000ab_",
        f"{RID}.-1.2.000000ab",
        f"{RID}.1.2.000000ab.3",
        f"{RID.upper()}.1.2.000000ab",
        f"{RID}.{'1' * 11}.2.000000ab",
        "../../etc.1.2.000000ab",
        "_".join([f"{RID}.1.2.000000ab"] + ["1.2.000000ab"] * 5000),
    ],
)
def test_junk_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_event_id(text)
