"""A tenant's first requests go to the lowest lane of their class, further ones to higher ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.tenants.ledger import TenantLedger
from frontend.tenants.tenant import LANE_SIZE, Tenant
from shared.subjects import NUM_LANES, Lane
from tests.frontend.conftest import Stack
from tests.frontend.inference.test_accept import BODY, CHAT

moves = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 80)), max_size=20)


def test_the_lanes_of_a_usual_tenant() -> None:
    levels = [Tenant().lane_level(num) for num in range(100)]
    assert [levels.count(level) for level in range(NUM_LANES)] == [8, 56, 36]
    assert levels == sorted(levels)


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_a_tenant_that_weighs_more_is_never_worse_off(num: int, weight: float) -> None:
    levels = [Tenant(weight=factor * weight).lane_level(num) for factor in (1, 2)]
    assert levels[0] >= levels[1]
    assert Tenant(weight=weight).lane_level(0) == 0, "the first request is always at the front"


@given(moves, st.data())
def test_lanes_follow_from_what_is_outstanding_and_nothing_else(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    ledger, held = TenantLedger(), dict[str, str]()
    for tenant_name, num_requests in steps:
        tenant = Tenant(tenant_name)
        before = sum(name == tenant_name for name in held.values())
        lanes = ledger.lanes(tenant, "batch", num_requests)
        assert lanes == [
            Lane("batch", tenant.lane_level(before + idx)) for idx in range(num_requests)
        ]
        assert set(ledger.lanes(tenant, "interactive", 3)) == {Lane("interactive", 0)}
        for _ in range(num_requests):
            rid = str(len(held))
            while rid in held:
                rid += "x"
            held[rid] = tenant_name
            ledger.add(rid, tenant_name, "batch")
        for rid in data.draw(st.sets(st.sampled_from(sorted(held)))):
            del held[rid]
            ledger.remove(rid)


@pytest.mark.integration
async def test_requests_go_to_higher_lanes_as_they_become_many(stack: Stack) -> None:
    await make_room(stack, 1000)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        waiting = [asyncio.create_task(client.post(CHAT, json={**BODY, "n": 5}))]
        await stack.until_queued(5)
        waiting.append(asyncio.create_task(client.post(CHAT, json={**BODY, "n": 5})))
        await stack.until_queued(10)
        assert await num_queued(stack) == {"interactive": LANE_SIZE, "interactive-1": 2}
        batch = {"X-Job-Class": "batch"}
        waiting.append(asyncio.create_task(client.post(CHAT, json=BODY, headers=batch)))
        await stack.until_queued(11)
        assert (await num_queued(stack))["batch"] == 1, "each class has its own count"
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}
        stack.backend.hold.clear()
        again = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        assert await num_queued(stack) == {"interactive": 1}, "what is over does not count"
        stack.backend.hold.set()
        await again


async def make_room(stack: Stack, max_msgs: int) -> None:
    """Let the queue take so many requests."""
    name = stack.cluster.subjects.requests_stream
    config = (await stack.cluster.js.api(f"STREAM.INFO.{name}"))["config"]
    await stack.cluster.js.api(f"STREAM.UPDATE.{name}", config | {"max_msgs": max_msgs})


async def num_queued(stack: Stack) -> dict[str, int]:
    """Messages of each lane that has some."""
    subjects, pool = stack.cluster.subjects, stack.card.pool
    query: dict[str, Any] = {"subjects_filter": subjects.requests(pool, "*")}
    info = await stack.cluster.js.api(f"STREAM.INFO.{subjects.requests_stream}", query)
    found = info["state"].get("subjects") or {}
    return dict(Counter(subject.split(".")[3] for subject in found))
