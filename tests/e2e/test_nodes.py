"""A model that two hosts share, of which each is killed in the middle of a stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.role_stack import RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.freezing import freeze

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]

ENGINE = ("--num-threads", "1", "--dtype", "float32")
TWO = ("--device", "cpu", "--tp", "2", "--nnodes", "2", "--num-kv-tokens", "4096")
PATIENCE_S = 120.0


def start_node(stack: RoleStack, node_rank: int, *flags: str) -> RoleProcess:
    return stack.start_worker(*ENGINE, *TWO, "--node-rank", str(node_rank), *flags)


async def until_it_says(stack: RoleStack, role: RoleProcess, words: str) -> None:
    await stack.wait_until(lambda: words in role.log, PATIENCE_S)


async def ends_with(role: RoleProcess, words: str) -> None:
    assert await asyncio.to_thread(role.process.wait, PATIENCE_S) != 0
    assert words in role.log


async def test_either_host_may_die(tmp_path: Path) -> None:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        alone = stack.start_worker(*ENGINE)
        await stack.wait_ready(1)
        expected = (await run_stream(stack.url())).text
        await asyncio.to_thread(alone.stop)

        nodes = {1: start_node(stack, 1)}
        await until_it_says(stack, nodes[1], "node 0: nobody is")
        nodes[0] = start_node(stack, 0)
        await stack.wait_ready(1, PATIENCE_S)
        await ends_with(start_node(stack, 0), "is node 0 of this model and node_group already")
        await ends_with(start_node(stack, 1, "--page-size", "32"), "has page_size=32, node 0 on")
        assert (await run_stream(stack.url())).text == expected

        for killed in (1, 0, None):
            stream = Stream()
            running = asyncio.create_task(stream.post(stack.url(), completion_body()))
            await stream.wait_for_tokens(20)
            if killed is not None:
                nodes[killed].kill()
            else:  # the rank of node 1 hangs, which itself goes on
                freeze(nodes[1].engine().pid)
                await ends_with(nodes[0], "the engine made no step for too long")
            nodes[killed or 0] = start_node(stack, killed or 0)
            async with asyncio.timeout(PATIENCE_S):
                await running
            assert (stream.text, stream.error) == (expected, None)
        await stack.until_queued(0)
