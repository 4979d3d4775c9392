"""`jetflock dead` against a real stream: what it shows, queues again and forgets."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import msgspec
import pytest

from shared.admin.dead_requests import DeadRequests, NotKept
from shared.protocol.codec import decode, encode
from shared.protocol.dead import Crash, DeadRequest
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.prompt_object import (
    PromptData,
    dead_prompt_object,
    prompt_data,
    prompt_object,
    without_large_parts,
)
from shared.protocol.request import GenerateRequest, ImageSpan
from shared.protocol.token_ids import pack_token_ids
from tests.forked_program import run_program
from tests.nats_server import NatsServer
from tests.worker.io_stage import POOL, Stage, ids, make_reply, make_request, open_stage
from tests.worker.running_worker import running_worker

pytestmark = pytest.mark.integration


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage


def make_dead(request: GenerateRequest, /, **changes: object) -> DeadRequest:
    crashes = tuple(Crash(f"w{n}", n, n + 0.5, n == 2, False) for n in range(3))
    dead = DeadRequest(request.rid, POOL, "batch", "why", crashes, 1.0, 9.0, encode(request))
    return msgspec.structs.replace(dead, **changes)


async def run(stage: Stage, *argv: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        run_program, "jetflock", "dead", *argv, "--nats-url", stage.config.nats_url
    )


async def test_list_and_show_tell_what_happened_and_no_prompt(stage: Stage) -> None:
    first, second = make_request(), make_request()
    for request in (first, second):
        await DeadRequests(stage.cluster).put(make_dead(request))
    listed = (await run(stage, "list")).stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == [first.rid, second.rid]
    assert listed[0].split("\t")[1:] == [
        "m", "1970-01-01 00:00:01Z", "1970-01-01 00:00:09Z", "3", "3"
    ]  # fmt: skip
    shown = (await run(stage, "show", second.rid)).stdout
    assert "w2\tworker\talone" in shown
    assert "prompt_ids" not in shown
    whole = json.loads((await run(stage, "show", second.rid, "--json")).stdout)
    assert whole["prompt_ids"] == [1, 2, 3]
    assert [crash["worker"] for crash in whole["crashes"]] == ["w0", "w1", "w2"]


async def test_drop_forgets_the_named_ones_alone(stage: Stage) -> None:
    requests = [make_request() for _ in range(3)]
    for request in requests:
        await DeadRequests(stage.cluster).put(make_dead(request))
    assert (await run(stage, "drop", requests[0].rid, requests[2].rid)).returncode == 0
    [left] = await DeadRequests(stage.cluster).all()
    assert left.dead.rid == requests[1].rid


async def test_an_unknown_id_is_refused_before_anything_is_done(stage: Stage) -> None:
    request = make_request()
    await DeadRequests(stage.cluster).put(make_dead(request))
    done = await run(stage, "drop", request.rid, "f" * 32)
    assert done.returncode == 2
    assert f"no dead request {'f' * 32}" in done.stderr
    assert len(await DeadRequests(stage.cluster).all()) == 1


async def test_a_wrong_prefix_is_told_and_makes_no_streams(stage: Stage) -> None:
    done = await run(stage, "list", "--prefix", "other")
    assert done.returncode == 2
    assert "no stream other_DEAD" in done.stderr
    names = (await stage.cluster.js.api("STREAM.NAMES"))["streams"]
    assert not any(name.startswith("other") for name in names)


async def test_requeue_runs_it_under_a_new_rid_for_nobody_in_particular(stage: Stage) -> None:
    request = make_request()
    reply = msgspec.structs.replace(
        make_reply(request.rid), group_id="0" * 32, choice_idx=1, num_choices=3, owner="key",
        frontend_id="gone",
    )  # fmt: skip
    request = msgspec.structs.replace(request, reply=reply)
    await DeadRequests(stage.cluster).put(make_dead(request))
    old, new = (await run(stage, "requeue", request.rid)).stdout.split()
    assert (old, new == old) == (request.rid, False)
    assert await DeadRequests(stage.cluster).all() == []
    delivery = await stage.pull("batch")
    again = delivery.read_request()
    assert (again.rid, again.reply.group_id) == (new, new)
    assert (again.reply.choice_idx, again.reply.num_choices) == (0, 1)
    assert (again.reply.owner, again.reply.frontend_id) == ("key", "")
    assert (again.prompt_ids, again.sampling) == (request.prompt_ids, request.sampling)
    async with running_worker(stage) as worker:
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        run_again = await worker.engine.next_run()
        worker.engine.emit(run_again.run_id, ids("ab"), Finish(FinishReason.STOP))
        await stage.until_queue_is_empty()
    assert (await stage.fold(new)).tokens == ids("ab")


async def test_it_is_queued_once_however_many_requeue_it(stage: Stage) -> None:
    """Two operators at once, and a third whose list is old."""
    request = make_request()
    await DeadRequests(stage.cluster).put(make_dead(request))
    [stored] = await DeadRequests(stage.cluster).all()
    first, second = await asyncio.gather(
        *(DeadRequests(stage.cluster).requeue(stored) for _ in range(2))
    )
    assert first == second
    assert await stage.num_queued() == 1
    async with running_worker(stage) as worker:
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"), Finish(FinishReason.STOP))
        await stage.until_queue_is_empty()
        assert await DeadRequests(stage.cluster).requeue(stored) == first
        await stage.until_queue_is_empty()
        assert len(worker.engine.runs) == 1
    assert (await stage.fold(first)).tokens == ids("ab")


async def test_of_two_who_requeue_a_long_prompt_the_later_is_told(stage: Stage) -> None:
    dead, num_tokens = DeadRequests(stage.cluster), 70_000
    request = make_request()
    reply = make_reply(request.rid, num_tokens)
    request = msgspec.structs.replace(request, prompt_ids=b"", reply=reply)
    copy = dead_prompt_object(request.rid)
    await dead._catalog.put_object(copy, pack_token_ids([7] * num_tokens))
    await dead.put(make_dead(request, prompt_object=copy))
    [stored] = await dead.all()
    new = await dead.requeue(stored)
    await dead._catalog.erase_object(prompt_object(new, num_tokens))  # it has run
    with pytest.raises(NotKept, match="somebody else has just queued it"):
        await dead.requeue(stored)
    assert await stage.num_queued() == 1


async def test_a_long_prompt_is_kept_and_queued_again(stage: Stage) -> None:
    dead, num_tokens = DeadRequests(stage.cluster), 70_000
    request = make_request()
    name = prompt_object(request.rid, num_tokens)
    reply = make_reply(request.rid, num_tokens)
    request = msgspec.structs.replace(request, prompt_ids=b"", prompt_object=name, reply=reply)
    prompt = pack_token_ids([7] * num_tokens)
    await dead._catalog.put_object(name, prompt)
    copy = await dead.copy_prompt(request)
    assert copy == dead_prompt_object(request.rid)
    await dead.put(make_dead(request, prompt_object=copy))
    await dead._catalog.erase_object(name)  # as its frontend does
    [stored] = await dead.all()
    new = await dead.requeue(stored)
    queued = (await stage.pull("batch")).read_request()
    assert queued.rid == new
    assert await dead._catalog.object(queued.prompt_object) == prompt


async def test_images_are_kept_and_queued_again(stage: Stage) -> None:
    dead = DeadRequests(stage.cluster)
    request = make_request(images=(ImageSpan(1, 2, b"digest"),))
    reply = msgspec.structs.replace(request.reply, has_images=True)
    request = msgspec.structs.replace(request, reply=reply)
    request, data = without_large_parts(request, (b"pixels",))
    await dead._catalog.put_object(request.prompt_object, data)
    copy = await dead.copy_prompt(request)
    await dead.put(make_dead(request, prompt_object=copy))
    await dead._catalog.erase_object(request.prompt_object)  # as its frontend does
    [stored] = await dead.all()
    await dead.requeue(stored)
    queued = (await stage.pull("batch")).read_request()
    assert queued.prompt_object == prompt_object(queued.rid, 3, has_images=True)
    whole = prompt_data(queued, await dead._catalog.object(queued.prompt_object))
    assert whole == PromptData(request.prompt_ids, (b"pixels",))


async def test_what_could_not_be_kept_is_not_requeued(stage: Stage) -> None:
    dead = DeadRequests(stage.cluster)
    await dead.put(make_dead(make_request(), request=b""))
    [stored] = await dead.all()
    with pytest.raises(NotKept):
        await dead.requeue(stored)
    assert await dead.all() == [stored]


async def test_two_copies_count_as_one_and_go_together(stage: Stage) -> None:
    dead, letter = DeadRequests(stage.cluster), make_dead(make_request())
    subject = stage.cluster.subjects.dead(POOL)
    for _ in range(2):
        await stage.cluster.js.publish(subject, encode(letter))  # beyond the duplicate window
    [stored] = await dead.all()
    assert decode(GenerateRequest, stored.dead.request).rid == letter.rid
    await dead.drop(stored)
    assert await dead.all() == []
