"""A stack whose server has the users of `jetflock nats-users`, and whose frontends have theirs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from deploy.nats.permissions import ADMIN
from tests.frontend.conftest import Stack, open_stack
from tests.nats_users import NatsUsers

_RESTLESS = ("KV_jf_roles",)  # heartbeats
_PASSING = (*_RESTLESS, "KV_jf_workers", "jf_REQUESTS")  # what is done with, goes by itself


@contextlib.asynccontextmanager
async def open_users_stack(users: NatsUsers, caller: str) -> AsyncIterator[Stack]:
    """The test and its backend are the admin; `caller` is a client."""
    server = users.server()
    server.start()
    try:
        nc = await users.connect(server.url, caller)
        async with nc, open_stack(server, nc, **users.options(ADMIN)) as stack:
            stack.options |= users.frontend_options()
            yield stack
    finally:
        server.kill()


async def states(stack: Stack) -> dict[str, Any]:
    """Of all streams, with the names of their durable consumers; those of heartbeats aside."""
    found = (await stack.cluster.js.api("STREAM.LIST", {}))["streams"]
    states = {info["config"]["name"]: info["state"] for info in found}
    for name in _RESTLESS:
        del states[name]
    for name, state in states.items():
        del state["consumer_count"]
        durables = await _consumers(stack, name, durable=True)
        state["durables"] = sorted(each["name"] for each in durables)
    return states


async def passing_readers(stack: Stack) -> set[str]:
    """Names of the consumers that go by themselves when nobody has read by them for a while."""
    return {
        each["name"]
        for stream in await states(stack)
        for each in await _consumers(stack, stream, durable=False)
    }


async def _consumers(stack: Stack, stream: str, *, durable: bool) -> list[dict[str, Any]]:
    found = (await stack.cluster.js.api(f"CONSUMER.LIST.{stream}", {}))["consumers"] or []
    return [each for each in found if ("durable_name" in each["config"]) == durable]


async def stored(stack: Stack) -> set[tuple[str, int]]:
    """Stream and sequence of every message that nobody but a user with the right takes away."""
    js = stack.cluster.js
    return {
        (name, message.seq)
        for name in await states(stack)
        if name not in _PASSING
        async for message in js.direct_scan(name, ">")
    }
