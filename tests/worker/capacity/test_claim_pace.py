"""No more requests are pulled than are claimed in a second."""

from __future__ import annotations

from worker.capacity.claim_pace import ClaimPace


def test_room_grows_as_fast_as_claims_are_stored_and_falls_with_them() -> None:
    now = [0.0]
    pace = ClaimPace(lambda: now[0])
    assert pace.room == 16
    for _ in range(16):
        pace.begin()
    assert pace.room == 0  # on a starved machine none of them is stored
    for _ in range(16):
        pace.end()
    assert pace.room == 32
    for _ in range(32):
        pace.begin()
    assert pace.room == 0
    for _ in range(32):
        pace.end()
    assert pace.room == 96
    now[0] = 0.9
    assert pace.room == 96
    now[0] = 1.1  # nothing came meanwhile
    assert pace.room == 16
