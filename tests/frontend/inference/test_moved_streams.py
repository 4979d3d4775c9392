"""A stream without a key that was resumed at another frontend is the other one's to lose."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.inference.answers.attachments import Attachments
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.reply import ReplyParams, Surface
from shared.subjects import new_rid
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}
ORPHAN_WAIT_S = 0.5


async def locks(stack: Stack) -> set[str]:
    """Of the sweeps that have begun."""
    roles = stack.cluster.bucket(stack.cluster.subjects.roles_bucket)
    return {entry.key for entry in await roles.entries("orphans.")}


async def test_it_outlives_who_accepted_it_and_ends_with_its_reader(stack: Stack) -> None:
    stack.say("a", never_finish=True)
    accepted_by, read_by, survivor = [
        await stack.start_frontend(orphan_wait_s=ORPHAN_WAIT_S) for _ in range(3)
    ]
    async with (
        accepted_by.client() as client,
        client.stream("POST", CHAT, json=BODY) as response,
        read_by.client() as other,
    ):
        rid = response.headers["x-request-id"]
        await eventually(lambda: rid in stack.backend.runs)
        async with other.stream("GET", f"/v1/streams/{rid}") as resumed:
            assert resumed.status_code == 200
            await eventually(lambda: read_by.has_seen(accepted_by))
            await eventually(lambda: survivor.has_seen(read_by))
            for dying in (accepted_by, read_by):
                assert await stack.cluster.ownership.last(rid) is None
                await dying.die()
                await until_swept(stack, dying, survivor if dying is read_by else read_by)
    await eventually_async(lambda: is_ended(stack, rid))
    assert not survivor.task.done()


async def until_swept(stack: Stack, dead: RunningFrontend, survivor: RunningFrontend) -> None:
    async def has_begun() -> bool:
        return f"orphans.{dead.frontend_id}" in await locks(stack)

    await eventually_async(has_begun, 30)
    await time_to_err(1.0)  # more than a sweep takes
    assert not survivor.task.done()


async def is_ended(stack: Stack, rid: str) -> bool:
    last = await stack.cluster.ownership.last(rid)
    if last is None:
        return False
    assert isinstance(last.record, End)
    return last.record.reason is FinishReason.CANCEL


async def test_whoever_does_not_read_it_has_nothing_to_leave(stack: Stack) -> None:
    """Neither who accepted it, after another one has joined, nor a stranger."""
    bucket, rid = stack.cluster.bucket(stack.cluster.subjects.attached_bucket), new_rid()
    reply = ReplyParams("jf.out.a", Surface.CHAT, "m", 1, 3, rid, frontend_id="a")
    assert not await Attachments(bucket, "c").leave(rid, reply)
    assert await Attachments(bucket, "b").join(rid, reply)
    assert not await Attachments(bucket, "c").leave(rid, reply, "a")
    assert await Attachments(bucket, "c").leave(rid, reply, "b")
