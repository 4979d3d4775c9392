"""NATS restarts with a shorter log, as after a power loss: nobody waits for what is gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import run_stream

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]


async def test_a_worker_that_has_seen_more_than_is_left_ends_and_a_new_one_serves(
    tmp_path: Path,
) -> None:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        worker = stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        expected = await run_stream(stack.url(), max_tokens=20, seed=1)
        store, earlier = stack.nats.folder / "jetstream", tmp_path / "earlier"
        stack.nats.kill()
        await asyncio.to_thread(shutil.copytree, store, earlier)
        stack.nats.start()
        await stack.wait_ready(1)
        await run_stream(stack.url(), max_tokens=200, seed=2)
        stack.nats.kill()
        await asyncio.to_thread(shutil.rmtree, store)
        await asyncio.to_thread(shutil.copytree, earlier, store)
        stack.nats.start()
        await stack.wait_until(lambda: not worker.is_alive, 40)
        assert "NATS has lost records" in worker.log
        for role in stack.roles:  # a detokenizer whose lease was lost has begun anew by itself
            if role.name.startswith("detok") and not role.is_alive:
                stack.start_detok()
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        again = await run_stream(stack.url(), max_tokens=20, seed=1)
        assert again.text == expected.text
