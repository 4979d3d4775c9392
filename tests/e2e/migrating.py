"""`jetflock migrate` as a process beside the roles of a test."""

from __future__ import annotations

import asyncio
import sys

from shared.broker.kv_bucket import KvBucket
from shared.protocol.codec import decode
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.service.move import MoveRecords
from shared.subjects import Subjects
from tests.e2e.role_stack import REPOSITORY, RoleStack

NEW = "blue"


async def migrate(nats_url: str, *flags: str) -> tuple[int, str]:
    """What it returns and says."""
    process = await start_migrate(nats_url, *flags)
    async with asyncio.timeout(90):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def start_migrate(nats_url: str, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "jetflock", "migrate", "--nats-url", nats_url, "--to-prefix", NEW, *flags),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def is_announced(stack: RoleStack) -> bool:
    return (await MoveRecords(stack.cluster.js, "jf").moved_to()).record is not None


async def workers_of(stack: RoleStack, prefix: str) -> list[WorkerCard]:
    bucket = KvBucket(stack.cluster.js, Subjects(prefix).workers_bucket)
    return [decode(WorkerCard, entry.value) for entry in await bucket.entries()]


async def num_ready(stack: RoleStack, prefix: str) -> int:
    return sum(card.state is WorkerState.READY for card in await workers_of(stack, prefix))
