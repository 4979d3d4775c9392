"""Roles of the previous build beside today's: streams are exact in every mix, up and down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.role_stack import REPOSITORY
from tests.e2e.streams import Stream, run_stream
from tests.wire.builds import unpack_previous
from tests.wire.mixed_stack import Mix, MixedStack, Trio, leave, read_whole

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

OLD, NEW = "previous", "today"
NUM_SHORT, NUM_LONG = 12, 125  # tokens
NUM_STREAMS = 4
MAX_ROUNDS = 25


@pytest.fixture
async def mixed(tmp_path: Path) -> AsyncIterator[MixedStack]:
    builds = {OLD: unpack_previous(tmp_path / OLD), NEW: REPOSITORY}
    mixed = MixedStack(tmp_path / "stack", builds, OLD)
    async with mixed.stack:
        await mixed.hold_level(1)  # as an operator does who wants the way back open
        yield mixed


async def texts(url: str, num_tokens: int) -> list[str]:
    streams = await asyncio.gather(
        *(run_stream(url, seed=seed, max_tokens=num_tokens) for seed in range(NUM_STREAMS))
    )
    return [stream.text for stream in streams]


async def test_every_mix_and_an_upgrade_there_and_back(mixed: MixedStack) -> None:
    old = mixed.first()
    await mixed.stack.wait_ready(1)
    url = mixed.stack.url(old.frontend)
    short, long = await texts(url, NUM_SHORT), await texts(url, NUM_LONG)
    new = mixed.start(NEW)
    await mixed.until_shared(OLD, NEW)
    await meet_every_mix(mixed, old, new, short)
    await replace(mixed, old, new, long)
    old = mixed.start(OLD)
    await mixed.until_shared(OLD, NEW)
    await replace(mixed, new, old, long)


async def meet_every_mix(mixed: MixedStack, old: Trio, new: Trio, expected: list[str]) -> None:
    """Each frontend asks until each worker has run what each detokenizer decodes."""
    wanted = {Mix(f, w, d) for f in (OLD, NEW) for w in (OLD, NEW) for d in (OLD, NEW)}
    for _ in range(MAX_ROUNDS):
        for trio in (old, new):
            wanted -= await ask(mixed, trio, expected)
        if not wanted:
            return
    raise AssertionError(f"no stream went through {wanted}")


async def ask(mixed: MixedStack, trio: Trio, expected: list[str]) -> set[Mix]:
    url = mixed.stack.url(trio.frontend)
    streams = await asyncio.gather(
        *(run_stream(url, seed=seed, max_tokens=NUM_SHORT) for seed in range(NUM_STREAMS))
    )
    assert [stream.text for stream in streams] == expected
    return {await mixed.mix_of(trio, stream) for stream in streams}


async def replace(mixed: MixedStack, leaving: Trio, staying: Trio, expected: list[str]) -> None:
    """Role after role leaves under running streams, of which each of them has some."""
    urls = (mixed.stack.url(leaving.frontend), mixed.stack.url(staying.frontend))
    streams = [Stream() for _ in range(NUM_STREAMS)]
    reading = [
        asyncio.create_task(
            read_whole(stream, urls[seed % 2], urls[1], seed=seed, max_tokens=NUM_LONG)
        )
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(10)
    for role in (leaving.worker, leaving.detok, leaving.frontend):
        await leave(role)
    async with asyncio.timeout(60):
        await asyncio.gather(*reading)
    assert [stream.text for stream in streams] == expected
    assert {stream.finish_reason for stream in streams} == {"length"}
