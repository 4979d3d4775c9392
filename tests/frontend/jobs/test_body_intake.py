"""What is refused is paid for by who has sent it; large structures cost little until then."""

from __future__ import annotations

import itertools
import json
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from frontend.fields.request_body import RawBody
from frontend.jobs.body_intake import BodyIntake, RefusedWork
from frontend.jobs.job import Caller
from frontend.tenants.tenant import EVERYBODY, Tenant
from shared.errors import InvalidRequest, Overloaded, RateLimited, RequestError

ANNOYING, OTHER = Caller(Tenant("annoying")), Caller(Tenant("other"))
MAX_BYTES = 1 << 20
PADDED = b"{%s}" % (b" " * 98)
MANY_BIASES = {"logit_bias": {str(token_id): 1 for token_id in range(20_000)}}
MANY_MESSAGES = {"messages": [{"role": "user", "content": ""}] * 20_000}


async def refused(intake: BodyIntake, caller: Caller, data: bytes = b"[]") -> RequestError:
    with pytest.raises(RequestError) as caught, await intake.read(data, caller):
        raise InvalidRequest("whatever it is")
    return caught.value


async def test_who_sends_what_is_refused_is_sent_away_and_others_are_not() -> None:
    intake, data = BodyIntake(MAX_BYTES), json.dumps(MANY_BIASES).encode()
    for _ in range(1000):
        error = await refused(intake, ANNOYING, data)
        if isinstance(error, RateLimited):
            break
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 1
    with await intake.read(b"{}", OTHER) as body:
        assert body == {}


async def test_what_a_handler_refuses_counts_as_well_and_what_is_taken_does_not() -> None:
    intake = BodyIntake(MAX_BYTES)
    for _ in range(50_000):
        with await intake.read(b"{}", ANNOYING):
            pass
    for _ in range(50_000):
        if isinstance(await refused(intake, ANNOYING, b"{}"), RateLimited):
            return
    raise AssertionError("nobody is sent away")


async def test_without_keys_nobody_is_held_to_blame() -> None:
    intake = BodyIntake(MAX_BYTES)
    for _ in range(20_000):
        assert not isinstance(await refused(intake, Caller(EVERYBODY)), RateLimited)


def test_a_debt_is_paid_off_with_time() -> None:
    work, tenant = RefusedWork(), Tenant("t")
    work.charge(tenant, 1999, now=0.0)
    work.check(tenant, now=0.0)
    work.charge(tenant, 1001, now=0.0)
    with pytest.raises(RateLimited) as caught:
        work.check(tenant, now=0.0)
    assert caught.value.retry_after_s == 31  # a thirtieth of the loop
    work.check(tenant, now=31.0)
    work.charge(tenant, 1e6, now=31.0)
    with pytest.raises(RateLimited) as caught:
        work.check(tenant, now=31.0)
    assert caught.value.retry_after_s == 61
    work.check(tenant, now=200.0)
    assert not work._buckets, "who owes nothing is forgotten"


_decode = msgspec.json.decode


def _lazy_decode(data: bytes, **options: Any) -> Any:
    """Nothing is made of what a body holds."""
    assert "type" in options
    return _decode(data, **options)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (MANY_BIASES, "'logit_bias' has 20000 tokens, at most 1024"),
        (MANY_MESSAGES, "'messages' holds 20000, at most 4096"),
    ],
)
def test_entries_are_counted_before_they_are_made(
    body: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = RawBody(json.dumps(body).encode())
    assert 1 < raw.reading_ms < 30
    monkeypatch.setattr("msgspec.json.decode", _lazy_decode)
    with pytest.raises(InvalidRequest, match=words):
        raw.parse()


def nested(depth: int, kind: str) -> bytes:
    """A body of so many objects, or lists in an object, one inside the other."""
    if kind == "objects":
        return b'{"x":' * depth + b"1" + b"}" * depth
    return b'{"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize("kind", ["objects", "lists"])
def test_bodies_are_nested_so_deep_and_no_deeper(kind: str) -> None:
    """What is made of them for the store and for answers has room for more."""
    assert RawBody(nested(100, kind)).parse() == json.loads(nested(100, kind))
    for depth in (101, 300, 940, 20_000):
        with pytest.raises(InvalidRequest, match="nested too deeply: at most 100"):
            RawBody(nested(depth, kind)).parse()
    brackets = {"messages": [{"content": "[{" * 5000}] * 10}
    assert RawBody(json.dumps(brackets).encode()).parse() == brackets, "texts may hold any"


@pytest.mark.parametrize(
    "field", ['"messages": 5', '"messages": {}', '"logit_bias": []', '"messages": null']
)
def test_entries_of_another_type_are_left_to_who_reads_them(field: str) -> None:
    data = f'{{"padding": [{",".join("1" * 10_000)}], {field}}}'.encode()
    assert RawBody(data).parse() == json.loads(data)


@pytest.mark.parametrize(("tenants", "num"), [(("", ""), 4), (("a", "a"), 2), (("a", "b"), 3)])
async def test_bodies_are_held_up_to_a_number_of_bytes(tenants: tuple[str, str], num: int) -> None:
    """One after the other, until one is refused; with keys some room is left for others."""
    intake = BodyIntake(4 * len(PADDED))
    async with AsyncExitStack() as held:
        num_taken = 0
        for tenant in itertools.cycle(tenants):
            try:
                held.enter_context(await intake.read(PADDED, Caller(Tenant(tenant))))
            except Overloaded:
                break
            num_taken += 1
    assert num_taken == num
    with await intake.read(b"{%s}" % (b" " * 8 * len(PADDED)), ANNOYING) as body:
        assert body == {}  # one that is alone may be larger
