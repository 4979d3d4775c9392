"""Many requests run again on another model, with kill -9 of each who has a part in it: each is
compared once.

A token of the scripted engine depends on prompt, seed and position alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.subjects import is_sampled
from tests.e2e.role_stack import REPOSITORY, SCRIPTED, RoleStack
from tests.e2e.streams import completion_body, http_client
from tests.forked_program import ForkedProgram

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(120),
]

NUM_TOKENS = 30
CANDIDATE = "candidate"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    def flags(role: str) -> list[str]:
        return ["--keep-requests", "all"] if role == "frontend" else []

    async with RoleStack(tmp_path, "--ack-wait-s", "3", role_flags=flags) as running:
        yield running


class Program:
    """A command whose journal is watched."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        self.journal, self._out = folder / f"{name}.jsonl", folder / f"{name}.out"
        module = f"jetflock.commands.{name}"
        words = ["-m", module, "--journal", str(self.journal), "--model", CANDIDATE, *flags]
        self._command = [sys.executable, *words]
        self.start()

    def start(self) -> None:
        self.process = ForkedProgram(
            self._command,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            out=self._out,
            err=self._out,
        )

    def restart(self) -> None:
        """After kill -9."""
        self.process.kill()
        self.process.wait()
        self.start()

    @property
    def noted(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    @property
    def compared(self) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in self.noted.split("\n")[:-1]]
        return [entry for entry in entries if "id" in entry]

    @property
    def out(self) -> str:
        return self._out.read_text()


async def ask(url: str, seed: int) -> str:
    """The id of a request that is over."""
    body = completion_body(seed=seed, max_tokens=NUM_TOKENS, stream=False, temperature=1)
    async with http_client() as client:
        answer = await client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-request-id"])


async def test_each_is_compared_once_over_kills(stack: RoleStack, tmp_path: Path) -> None:
    stack.start_worker(*SCRIPTED)
    doomed = stack.start_worker(*SCRIPTED, name=CANDIDATE)
    stack.start_worker(*SCRIPTED, name=CANDIDATE)
    second = stack.start_frontend()
    await stack.wait_ready(3)
    await stack.wait_listed(CANDIDATE)
    urls = [stack.url(), stack.url(second)]
    first_ones = await asyncio.gather(*(ask(urls[0], seed) for seed in range(12)))

    flags = ("--url", ",".join(urls), "--concurrency", "2")
    shadow = Program(tmp_path, "shadow", *flags, "--of", "demo", "--share", "60%")
    await stack.wait_until(lambda: "since" in shadow.noted)
    replay = Program(tmp_path, "replay", *flags, "--since", "1h", "--of", "demo")
    await stack.wait_until(lambda: len(replay.compared) >= 2)
    doomed.kill()
    await stack.wait_until(lambda: len(replay.compared) >= 4)
    replay.restart()
    later_ones = await asyncio.gather(*(ask(urls[1], seed) for seed in range(20, 30)))
    chosen = {rid for rid in later_ones if is_sampled(rid, 0.6)}
    await stack.wait_until(lambda: len(shadow.compared) >= min(1, len(chosen)))
    shadow.restart()
    stack.roles[0].kill()  # the frontend that both have asked
    await stack.wait_until(lambda: replay.process.poll() is not None)
    assert replay.process.poll() == 0, replay.out
    await stack.wait_until(lambda: {each["id"] for each in shadow.compared} >= chosen)
    shadow.process.terminate()
    assert shadow.process.wait(20) == 0, shadow.out

    for program, expected in ((replay, set(first_ones)), (shadow, chosen)):
        found = [each["id"] for each in program.compared]
        assert len(found) == len(set(found)), "a request is compared twice"
        assert set(found) >= expected
        assert not [each for each in program.compared if not each.get("equal")]
        assert {each["second"]["model"] for each in program.compared} == {CANDIDATE}
        assert {each["second"]["num_tokens"] for each in program.compared} == {NUM_TOKENS}
        assert "equal" in program.out
    assert {each["id"] for each in shadow.compared} <= {*first_ones, *later_ones}
    await stack.until_queued(0)
