"""When a rival's lease counts as expired: by what was seen, and only while one could see."""

from __future__ import annotations

import time

import pytest

from detok.owner_table import LeaseSeen, OwnerSurvey
from detok.rivals import Rivals


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def survey(**revisions: int) -> OwnerSurvey:
    return OwnerSurvey({nonce: LeaseSeen("d", 1.0, seq) for nonce, seq in revisions.items()})


def look(rivals: Rivals, *, can_judge: bool = True, **revisions: int) -> None:
    rivals.note(survey(**revisions), "me", can_judge=can_judge)


def test_what_is_not_renewed_for_its_period_has_expired(clock: Clock) -> None:
    rivals = Rivals()
    for now, revision in ((0.0, 1), (0.9, 2), (1.8, 3)):
        clock.now = 100.0 + now
        look(rivals, a=revision)
        assert not rivals.expired
    clock.now += 1.01
    look(rivals, a=3)
    assert set(rivals.expired) == {"a"}
    assert rivals.expired["a"].revision == 3
    assert not rivals.living


def test_what_was_found_is_left_alone_and_not_shared_with(clock: Clock) -> None:
    rivals = Rivals()
    look(rivals, left=1)
    clock.now += 0.5
    look(rivals, left=1, new=2)
    assert not rivals.expired
    assert rivals.living == {"new"}


def test_an_older_answer_renews_nothing(clock: Clock) -> None:
    rivals = Rivals()
    look(rivals, a=5)
    clock.now += 0.9
    look(rivals, a=4)
    clock.now += 0.2
    look(rivals, a=5)
    assert rivals.expired["a"].revision == 5


@pytest.mark.parametrize("is_read", [True, False])
def test_time_in_which_nobody_could_renew_does_not_count(clock: Clock, is_read: bool) -> None:
    rivals = Rivals()
    look(rivals, a=1)
    for _ in range(10):
        clock.now += 0.5
        if is_read:
            look(rivals, can_judge=False, a=1)  # as a server without a leader answers
        else:
            rivals.look_away()
    assert not rivals.expired
    clock.now += 0.9
    look(rivals, a=1)
    assert not rivals.expired
    clock.now += 0.2
    assert rivals.expired


def test_who_is_silent_may_be_asked_for_and_loses_only_what_was_not_renewed(clock: Clock) -> None:
    rivals = Rivals()

    def note(revision: int) -> None:
        leases = {
            "n": LeaseSeen("new", 1.0, revision, has_presence=True),
            "o": LeaseSeen("old", 1.0, revision),
        }
        rivals.note(OwnerSurvey(leases), "me", can_judge=True)

    note(1)
    assert rivals.silent == set()
    clock.now += 0.3
    note(1)
    assert rivals.silent == {"new"}
    assert set(rivals.left_by({"new"})) == {"n"}
    note(2)
    assert rivals.left_by({"new"}) == {}
    clock.now += 0.3
    rivals.note_end("n")
    clock.now += 1.0
    note(2)  # an answer that is a moment old
    assert set(rivals.expired) == {"o"}
    assert rivals.living == rivals.silent == set()


def test_our_own_is_no_rival(clock: Clock) -> None:
    rivals = Rivals()
    look(rivals, me=1)
    clock.now += 5
    look(rivals, me=1)
    assert not rivals.expired
    assert not rivals.known
