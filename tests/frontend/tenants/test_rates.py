"""Rates per minute: exact over time, and shared by frontends that hear of each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.tenants.rate_bucket import RateBucket
from frontend.tenants.rate_limiter import RateLimiter
from frontend.tenants.tenant import Tenant
from shared.errors import RateLimited

ALICE = Tenant("alice", requests_per_minute=60, tokens_per_minute=6000)


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50)), min_size=1, max_size=100),
)
def test_no_minute_lets_more_in_than_a_bucket_and_what_filled_it(
    per_minute: int, processor_ids: list[tuple[float, int]]
) -> None:
    bucket, now, taken = RateBucket(per_minute, 0.0), 0.0, 0
    for pause_s, count in processor_ids:
        now += pause_s
        if count <= per_minute and bucket.wait_s(count, now) == 0:
            bucket.take(count, now)
            taken += count
        assert taken <= per_minute * (1 + now / 60) + 1e-6


@given(st.integers(1, 1000), st.integers(0, 3000), st.integers(1, 1000))
def test_who_waits_as_long_as_told_is_let_in(per_minute: int, debt: int, count: int) -> None:
    bucket = RateBucket(per_minute, 0.0)
    bucket.take(debt, 0.0)
    wait_s = bucket.wait_s(count, 0.0)
    assert bucket.wait_s(count, wait_s + 1e-6) == 0
    if wait_s > 0.01:
        assert bucket.wait_s(count, wait_s - 0.01) > 0, "not longer than needed"


def test_output_makes_a_debt_that_is_paid_before_anything_else_comes() -> None:
    book = RateLimiter()
    book.check(ALICE, 1000, 0.0)
    book.take(ALICE, 1, 1000, 0.0)
    book.charge(ALICE, 8000, 10.0)  # it had 5000 + 1000 by then
    with pytest.raises(RateLimited, match="6000 tokens per minute, of which 0 are left") as caught:
        book.check(ALICE, 100, 10.0)
    assert caught.value.retry_after_s == 21  # 2000 of debt and 100 tokens, at 100 a second
    assert caught.value.error_type == "tokens"
    book.check(ALICE, None, 10.0)  # a stream is read again
    book.check(ALICE, 100, 31.01)


def test_a_prompt_larger_than_the_minute_may_come_when_nothing_else_did() -> None:
    book = RateLimiter()
    book.check(ALICE, 50_000, 0.0)
    book.take(ALICE, 1, 50_000, 0.0)
    with pytest.raises(RateLimited):
        book.check(ALICE, 1, 60.0)


def test_the_headers_are_openais() -> None:
    book = RateLimiter()
    book.take(ALICE, 30, 5900, 0.0)
    assert book.headers(ALICE, 0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "30",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "59s",
    }
    assert book.headers(Tenant("bob"), 0.0) == {}


def tell(source: RateLimiter, name: str, target: RateLimiter, now: float) -> None:
    target.hear(name, list(source.uses(now).values()), now)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 500)), max_size=40),
    st.booleans(),
)
def test_two_frontends_that_hear_each_other_hold_one_limit(
    steps: list[tuple[bool, bool, int]], is_late: bool
) -> None:
    """Whatever news get lost: after the last ones, both know what is left."""
    here, there, now = RateLimiter(), RateLimiter(), 0.0
    if not is_late:  # else one of them hears of the tenant before anybody asks there
        for book in (here, there):
            book.take(ALICE, 0, 1, now)
    num_taken = 0 if is_late else 2
    for is_here, is_told, num_tokens in steps:
        (here if is_here else there).take(ALICE, 1, num_tokens, now)
        num_taken += num_tokens
        if is_told:
            tell(here, "here", there, now)
            tell(there, "there", here, now)
    for _ in range(2):
        tell(here, "here", there, now)
        tell(there, "there", here, now)
    left = [tokens_left(book, now) for book in (here, there)]
    assert left[0] == left[1]
    assert int(left[0]) == max(0, 6000 - num_taken)


def tokens_left(book: RateLimiter, now: float) -> str:
    return book.headers(ALICE, now)["x-ratelimit-remaining-tokens"]


def test_what_was_made_for_a_tenant_elsewhere_is_paid_for_where_it_comes_next() -> None:
    first, second = RateLimiter(), RateLimiter()
    first.take(ALICE, 1, 1000, 0.0)
    tell(first, "first", second, 0.0)
    for book in (first, second):
        book.charge(ALICE, 8000, 0.0)
    with pytest.raises(RateLimited):
        second.check(ALICE, 100, 0.0)  # before the first has told anything again
    tell(first, "first", second, 0.0)
    assert first.uses(0.0)["alice"].token_level == second.uses(0.0)["alice"].token_level == -3000


def test_a_frontend_that_starts_learns_of_debts_though_the_tenant_was_faster() -> None:
    old, new = RateLimiter(), RateLimiter()
    old.take(ALICE, 1, 1000, 0.0)
    old.charge(ALICE, 8000, 0.0)
    new.check(ALICE, 100, 0.0)
    new.take(ALICE, 1, 100, 0.0)
    tell(old, "old", new, 0.0)
    with pytest.raises(RateLimited):
        new.check(ALICE, 100, 0.0)


def a_steady_hour(book: RateLimiter) -> None:
    """Alice uses what she may, and her limit is never untouched."""
    book.take(ALICE, 1, 1000, 0.0)
    for second in range(1, 3600):
        book.take(ALICE, 0, 100, float(second))


def test_a_frontend_that_starts_does_not_charge_a_tenant_for_its_past() -> None:
    old, new = RateLimiter(), RateLimiter()
    a_steady_hour(old)
    new.take(ALICE, 1, 100, 3600.0)
    tell(old, "old", new, 3600.0)
    left = int(tokens_left(old, 3600.0))
    assert left == 5100
    assert left - 100 - 1000 <= int(tokens_left(new, 3600.0)) <= left


def test_frontends_that_could_not_hear_each_other_charge_nothing_twice() -> None:
    here, there = RateLimiter(), RateLimiter()
    for book in (here, there):
        book.take(ALICE, 0, 1, 0.0)
    tell(here, "here", there, 0.0)
    here.take(ALICE, 0, 2000, 0.0)
    tell(here, "here", there, 0.0)
    there.forget("here", 5.0)
    here.take(ALICE, 0, 1000, 5.0)
    tell(here, "here", there, 5.0)
    assert tokens_left(there, 5.0) == str(6000 - 3002 + 500)


def test_of_a_frontend_that_is_gone_nothing_is_kept_for_good() -> None:
    here, there = RateLimiter(), RateLimiter()
    here.take(ALICE, 1, 1000, 0.0)
    there.take(ALICE, 1, 1, 0.0)
    for idx in range(10):
        tell(here, f"here-{idx}", there, 0.0)
        there.forget(f"here-{idx}", 0.0)
    there.forget("here-9", 1e6)
    assert not there._accounts["alice"].heard


def test_a_frontend_that_starts_believes_the_others() -> None:
    old, new = RateLimiter(), RateLimiter()
    old.take(ALICE, 60, 0, 0.0)
    tell(old, "old", new, 0.0)
    with pytest.raises(RateLimited):
        new.check(ALICE, 0, 0.0)


def test_a_limit_that_was_not_used_for_long_is_not_charged_for_the_past() -> None:
    old, new = RateLimiter(), RateLimiter()
    old.take(ALICE, 60, 6000, 0.0)
    new.take(ALICE, 1, 0, 100.0)  # after a while of which it has heard nothing
    old.take(ALICE, 1, 100, 100.0)
    tell(old, "old", new, 100.0)
    assert new.headers(ALICE, 100.0)["x-ratelimit-remaining-tokens"] == "5900"


def test_limits_change_with_the_key_file() -> None:
    book = RateLimiter()
    book.take(ALICE, 60, 0, 0.0)
    more = Tenant("alice", requests_per_minute=600)
    with pytest.raises(RateLimited):
        book.check(more, 0, 0.0)
    book.check(more, 0, 0.2)
    book.check(Tenant("alice"), 0, 0.0)
