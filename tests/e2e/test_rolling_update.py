"""Other weights for a running pool: every stream is made with the old ones, or with the new ones.

The scripted engine makes its tokens from the weights' revision as well, so that one token of the
wrong revision shows.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.admin.control_plane import ControlPlane
from shared.admin.rolling_update import RollingUpdate, UpdateResult, WeightsOrder
from shared.errors import ConfigError
from shared.protocol.codec import decode
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.e2e.role_stack import DEMO_MODEL, REPOSITORY, SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks, eventually
from tests.worker.checkpoints import copy_checkpoint, read_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

BY_WEIGHTS = (*SCRIPTED, "--scripted-by-weights", "--revision-grace-s", "1")
NUM_STREAMS = 4


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as running:
        yield running


@pytest.fixture
def new_model(tmp_path: Path) -> Path:
    return copy_checkpoint(tmp_path / "new")


def start_worker(stack: RoleStack) -> RoleProcess:
    return stack.start_worker(*BY_WEIGHTS)


async def update(stack: RoleStack, path: Path, **order: Any) -> UpdateResult:
    plane = ControlPlane(stack.cluster, "test")
    return await RollingUpdate(stack.cluster, plane, WeightsOrder(str(path), **order)).run()


async def cards(stack: RoleStack) -> list[WorkerCard]:
    entries = await stack.cluster.bucket(stack.cluster.subjects.workers_bucket).entries()
    return [decode(WorkerCard, entry.value) for entry in entries]


async def until_state(stack: RoleStack, state: WorkerState) -> WorkerCard:
    async for _ in Looks(60):
        if found := [card for card in await cards(stack) if card.state is state]:
            break
    return found[0]


async def texts(stack: RoleStack, num_tokens: int) -> list[str]:
    streams = await asyncio.gather(
        *(run_stream(stack.url(), seed=seed, max_tokens=num_tokens) for seed in range(NUM_STREAMS))
    )
    return [stream.text for stream in streams]


def start_streams(
    stack: RoleStack, num_tokens: int
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    streams = [Stream() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=seed, max_tokens=num_tokens))
        )
        for seed, stream in enumerate(streams)
    ]
    return streams, tasks


async def test_every_stream_has_one_revision_and_nobody_waits_in_vain(
    stack: RoleStack, new_model: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        start_worker(stack)
    await stack.wait_ready(2)
    with pytest.raises(ConfigError, match="is no folder"):
        await update(stack, tmp_path / "nowhere")
    wide = copy_checkpoint(tmp_path / "wide", hidden_size=512)
    with pytest.raises(ConfigError, match="hidden_size is 512, the served model has 256"):
        await update(stack, wide)
    old = await texts(stack, 30)
    seen: list[list[str]] = [[] for _ in range(NUM_STREAMS)]
    is_over = asyncio.Event()

    async def keep_asking(seed: int) -> None:
        while not is_over.is_set():
            stream = await run_stream(stack.url(), seed=seed, max_tokens=30)
            seen[seed].append(stream.text)

    asking = [asyncio.create_task(keep_asking(seed)) for seed in range(NUM_STREAMS)]
    await eventually(lambda: all(seen))
    result = await update(stack, new_model, finish_timeout_s=30.0)
    is_over.set()
    await asyncio.gather(*asking)
    assert (len(result.updated), result.failed) == (2, {})
    assert {card.revision for card in await cards(stack)} == {result.revision}
    new = await texts(stack, 30)
    assert not set(old) & set(new)
    for seed, made in enumerate(seen):
        assert set(made) <= {old[seed], new[seed]}
        assert made[0] == old[seed]
    await stack.until_queued(0)
    assert read_checkpoint(new_model).revision == result.revision


@pytest.mark.slow
async def test_what_is_handed_over_in_the_middle_goes_on_with_the_old_weights(
    stack: RoleStack, new_model: Path
) -> None:
    for _ in range(2):
        start_worker(stack)
    await stack.wait_ready(2)
    old = await texts(stack, 150)
    streams, tasks = start_streams(stack, 150)
    for stream in streams:
        await stream.wait_for_tokens(10)
    # The first worker waits for nothing; the second has them all then.
    first = (await cards(stack))[0].worker
    result = await update(stack, new_model, workers=(first,), finish_timeout_s=0.0)
    assert result.updated == (first,)
    await asyncio.gather(*tasks)
    assert [stream.text for stream in streams] == old
    assert {stream.finish_reason for stream in streams} == {"length"}


@pytest.mark.nightly
async def test_a_worker_killed_while_it_is_updated(stack: RoleStack, new_model: Path) -> None:
    """Its streams go on with the old weights; whoever takes its place has the new ones."""
    workers = [start_worker(stack) for _ in range(2)]
    await stack.wait_ready(2)
    old = await texts(stack, 125)
    streams, tasks = start_streams(stack, 125)
    for stream in streams:
        await stream.wait_for_tokens(10)
    updating = asyncio.create_task(update(stack, new_model, finish_timeout_s=60.0))
    card = await until_state(stack, WorkerState.UPDATING)
    next(worker for worker in workers if worker.pid == card.pid).kill()
    result = await updating
    await asyncio.gather(*tasks)
    assert (result.gone, len(result.updated)) == ((card.worker,), 1)
    assert [stream.text for stream in streams] == old
    start_worker(stack)  # with the path of the old weights on its command line
    await stack.wait_ready(2)
    assert {card.revision for card in await cards(stack)} == {result.revision}


async def test_without_a_worker_of_their_revision_streams_end_with_an_error(
    stack: RoleStack, new_model: Path
) -> None:
    workers = [start_worker(stack) for _ in range(2)]
    await stack.wait_ready(2)
    old = await texts(stack, 125)
    await update(stack, new_model, workers=((await cards(stack))[0].worker,))
    [card] = [card for card in await cards(stack) if card.num_updates == 0]
    streams, tasks = start_streams(stack, 125)
    for stream in streams:
        await stream.wait_for_tokens(10)
    next(worker for worker in workers if worker.pid == card.pid).kill()
    await asyncio.gather(*tasks)
    errors = [stream.error for stream in streams if stream.error is not None]
    assert errors, "the killed worker had no stream"
    assert {error["code"] for error in errors} == {"weights_replaced"}
    for seed, stream in enumerate(streams):
        if stream.error is not None:
            assert stream.text
            assert old[seed].startswith(stream.text)
    await stack.until_queued(0)


@pytest.mark.slow
@pytest.mark.nightly
async def test_the_command_dies_in_the_middle_and_is_run_again(
    stack: RoleStack, new_model: Path
) -> None:
    for _ in range(2):
        start_worker(stack)
    await stack.wait_ready(2)
    old = await texts(stack, 50)
    argv = [sys.executable, "-m", "jetflock", "admin", "update-weights", str(new_model)]
    argv += ["--nats-url", stack.nats.url]
    command = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY)
    await until_state(stack, WorkerState.UPDATING)
    command.kill()
    await command.wait()
    await texts(stack, 50)  # it serves
    again = await asyncio.to_thread(
        subprocess.run, argv, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    revision = read_checkpoint(new_model).revision
    assert {card.revision for card in await cards(stack)} == {revision}
    assert not set(await texts(stack, 50)) & set(old)


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_restarted_pool_keeps_the_new_weights_and_can_go_back(
    stack: RoleStack, new_model: Path
) -> None:
    worker = start_worker(stack)
    await stack.wait_ready(1)
    old = await texts(stack, 30)
    await update(stack, new_model)
    new = await texts(stack, 30)
    worker.stop()
    start_worker(stack)
    await stack.wait_ready(1)
    assert await texts(stack, 30) == new != old
    await update(stack, DEMO_MODEL)
    assert await texts(stack, 30) == old
