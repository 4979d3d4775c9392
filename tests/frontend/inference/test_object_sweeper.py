"""Objects that nobody deleted are, once nobody needs them: on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frontend.config import FrontendConfig
from frontend.inference.answers import object_sweeper
from frontend.inference.answers.object_sweeper import ObjectSweeper
from shared.admin.dead_requests import DeadRequests
from shared.broker.objects import Objects
from shared.catalog.adapter_catalog import adapter_object
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import ProtocolError
from shared.protocol.dead import DeadRequest
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.prompt_object import dead_prompt_object
from shared.subjects import new_rid
from tests.frontend.conftest import Stack
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.frontend.tiny_model import make_bundle, make_card, register
from tests.nats_users import NatsUsers

pytestmark = pytest.mark.integration


@pytest.fixture
def objects(stack: Stack) -> Objects:
    return stack.cluster.objects(stack.cluster.subjects.objects_bucket)


def make_sweeper(cluster: Cluster, **ages: float) -> ObjectSweeper:
    sweeper = ObjectSweeper(cluster, "sweeper")
    for name, age_s in ages.items():
        setattr(sweeper, f"_{name}", age_s)
    return sweeper


async def names(objects: Objects) -> set[str]:
    return {entry.name async for entry in objects.all()}


async def test_a_prompt_goes_when_its_request_is_nowhere_or_over(
    stack: Stack, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between storing and queueing; killed before it deleted what was over; still queued."""
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    ownership = stack.cluster.ownership
    never_queued, over = new_rid(), new_rid()
    await ownership.append(over, End(prev=0, reason=FinishReason.CANCEL, by="f"))
    async with running.client() as client:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        queued = await stack.cluster.js.get_next(
            stack.cluster.subjects.requests_stream, stack.cluster.subjects.requests("*", "*"), 1
        )
        assert queued is not None
        queued_rid = queued.subject.rpartition(".")[2]
        for rid in (never_queued, over, queued_rid):
            await objects.put(f"prompt-{rid}", b"a long prompt")
        await objects.put("prompt-of-nobody", b"what is no request's")
        before = await names(objects)
        sweeper = make_sweeper(stack.cluster)
        assert await sweeper.sweep() == 0, "they are too young"
        monkeypatch.setattr(object_sweeper, "_MIN_AGE_S", 0.0)
        both = await asyncio.gather(sweeper.sweep(), make_sweeper(stack.cluster).sweep())
        assert max(both) >= 1
        while await sweeper.sweep():
            pass
        left = {f"prompt-{queued_rid}", "prompt-of-nobody"}
        assert before - await names(objects) == {f"prompt-{never_queued}", f"prompt-{over}"}
        assert left <= await names(objects)
        stack.backend.hold.set()
        assert (await waiting).status_code == 200

    last = await ownership.last(never_queued)
    assert last is not None
    assert isinstance(last.record, End), "should it be queued after all, nobody runs it"
    records = await ownership.read(over)
    assert len(records) == 1


async def test_a_prompt_that_is_claimed_at_that_moment_stays(
    stack: Stack, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frontend stood still between storing and queueing, and goes on in the worst moment."""
    monkeypatch.setattr(object_sweeper, "_MIN_AGE_S", 0.0)
    rid = new_rid()
    await objects.put(f"prompt-{rid}", b"a long prompt")
    has = type(stack.cluster.queue).has

    async def ended_after_the_look(queue: object, asked: str) -> bool:
        is_queued = await has(stack.cluster.queue, asked)
        await stack.cluster.ownership.append(
            asked, End(prev=0, reason=FinishReason.STOP, by="whoever was faster")
        )
        return is_queued

    monkeypatch.setattr(type(stack.cluster.queue), "has", ended_after_the_look)
    assert await make_sweeper(stack.cluster).sweep() == 0
    assert f"prompt-{rid}" in await names(objects)


async def test_the_copy_of_a_dead_prompt_goes_with_its_request(
    stack: Stack, objects: Objects
) -> None:
    kept, gone = new_rid(), new_rid()
    dead = DeadRequest(kept, "pool", "batch", "why", (), 1.0, 1.0, b"", dead_prompt_object(kept))
    await DeadRequests(stack.cluster).put(dead)
    for rid in (kept, gone):
        await objects.put(dead_prompt_object(rid), b"a long prompt")
    assert await make_sweeper(stack.cluster).sweep() == 0
    assert await make_sweeper(stack.cluster, retention_s=0.0).sweep() == 1
    found = await names(objects)
    assert dead_prompt_object(kept) in found
    assert dead_prompt_object(gone) not in found


async def test_pieces_of_who_died_while_storing_go(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stack.cluster.js.publish("$O.jf_objects.C.waif", b"half a prompt")
    assert await make_sweeper(stack.cluster).sweep() == 0
    monkeypatch.setattr(object_sweeper, "_NAMELESS_S", 0.0)
    assert await make_sweeper(stack.cluster).sweep() == 1
    assert await make_sweeper(stack.cluster).sweep() == 0


async def test_a_tokenizer_goes_when_no_card_names_it_any_more(
    stack: Stack, objects: Objects
) -> None:
    cluster = stack.cluster
    name = stack.card.tokenizer_hash
    sweeper, eager = make_sweeper(cluster), make_sweeper(cluster, unused_s=0.0)
    assert await eager.sweep() == 0
    entry = await objects.find(name)
    assert entry is not None
    assert entry.is_confirmed, "it is known that a card named it"

    await register(cluster, make_bundle(), make_card(make_bundle(), "another-name"))
    await ModelCatalog(cluster).delete(stack.card.pool)
    assert await eager.sweep() == 0, "another card names it"
    [other] = await ModelCatalog(cluster).cards()
    await ModelCatalog(cluster).delete(other.pool)
    assert await sweeper.sweep() == 0, "results may still be read with it"
    assert await eager.sweep() == 1
    assert await names(objects) == set()


async def test_files_that_an_earlier_version_left_have_their_time(
    stack: Stack, objects: Objects
) -> None:
    """Nobody knows since when no card has named them: it counts from now on."""
    await objects.put("0" * 64, b"a tokenizer")
    await objects.put(adapter_object("pool", "1"), b"an adapter")
    eager = make_sweeper(stack.cluster, unused_s=0.0)
    assert await eager.sweep() == 0
    assert await eager.sweep() == 2
    assert await names(objects) == {stack.card.tokenizer_hash}


async def test_a_card_that_nobody_can_read_may_name_anything(
    stack: Stack, objects: Objects
) -> None:
    await objects.put("0" * 64, b"a tokenizer")
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await cards.put("garbage", b"\xc1")
    for _ in range(2):
        with pytest.raises(ProtocolError):
            await make_sweeper(stack.cluster, unused_s=0.0).sweep()
    assert "0" * 64 in await names(objects)


async def test_a_frontend_has_the_rights_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MIN_AGE_S", "_NAMELESS_S"):
        monkeypatch.setattr(object_sweeper, name, 0.0)
    users = NatsUsers(tmp_path, [])
    server = users.server()
    server.start()
    try:
        admin = ClusterConfig(nats_url=server.url, **users.options("admin"))
        frontend = FrontendConfig(nats_url=server.url, **users.frontend_options())
        async with open_cluster(admin, "admin") as cluster, open_cluster(frontend, "f") as own:
            objects = cluster.objects(cluster.subjects.objects_bucket)
            for name in (f"prompt-{new_rid()}", dead_prompt_object(new_rid()), "0" * 64):
                await objects.put(name, b"what is in it")
            await cluster.js.publish("$O.jf_objects.C.waif", b"half a prompt")
            sweeper = make_sweeper(own, retention_s=0.0, unused_s=0.0)
            assert await sweeper.sweep() == 3
            assert await sweeper.sweep() == 1, "the tokenizer was confirmed before"
            assert await names(objects) == set()
    finally:
        server.kill()
