"""An object store on a real server: full, used by many, and left behind by who died."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator

import pytest

from shared.broker.objects import Objects
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import LimitReached, NotFound
from tests.nats_server import NatsServer
from tests.stream_limits import fill, set_limit

pytestmark = pytest.mark.integration

PIECE = 128 * 1024
STREAM = "OBJ_jf_objects"


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@pytest.fixture
def objects(cluster: Cluster) -> Objects:
    return cluster.objects(cluster.subjects.objects_bucket)


async def num_messages(cluster: Cluster) -> int:
    return int((await cluster.js.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])


async def test_what_is_stored_is_read_replaced_and_deleted(
    cluster: Cluster, objects: Objects
) -> None:
    assert await objects.put("a", b"1" * (2 * PIECE + 1)) == 2 * PIECE + 1
    assert await objects.get("a") == b"1" * (2 * PIECE + 1)
    assert await num_messages(cluster) == 4
    await objects.put("a", io.BytesIO(b"2"))
    into = io.BytesIO()
    assert await objects.get("a", into) == b""
    assert into.getvalue() == b"2"
    assert [entry.name async for entry in objects.all()] == ["a"]
    await objects.delete("a")
    await objects.delete("a")
    assert await objects.find("a") is None
    with pytest.raises(NotFound):
        await objects.get("a")
    assert await num_messages(cluster) == 0, "not even a word that it was there"


async def test_a_full_store_takes_nothing_and_gives_everything_back(
    cluster: Cluster, objects: Objects
) -> None:
    await objects.put("a", b"1" * PIECE)
    await objects.put("b", b"2" * PIECE)
    await fill(cluster.js, STREAM, 1.0)
    with pytest.raises(LimitReached):
        await objects.put("c", b"3")
    with pytest.raises(LimitReached, match="no room for c of 1 bytes: raise --objects-max-bytes"):
        await ModelCatalog(cluster).put_object("c", b"3")
    await objects.delete("a")
    await objects.erase("b")
    assert await num_messages(cluster) == 0
    await objects.put("c", b"3")


async def test_who_meets_a_full_store_leaves_no_pieces(cluster: Cluster, objects: Objects) -> None:
    await objects.put("a", b"1")
    await set_limit(cluster.js, STREAM, 3 * PIECE)
    with pytest.raises(LimitReached):
        await objects.put("b", b"2" * (4 * PIECE))
    assert await num_messages(cluster) == 2


async def test_nobody_deletes_what_was_confirmed_meanwhile(
    cluster: Cluster, objects: Objects
) -> None:
    await objects.put("a", b"1")
    seen = await objects.find("a")
    assert seen is not None
    assert not seen.is_confirmed
    assert await objects.confirm(seen)
    assert not await objects.confirm(seen), "somebody has"
    assert not await objects.delete_unchanged(seen)
    assert await objects.get("a") == b"1"
    now = await objects.find("a")
    assert now is not None
    assert now.is_confirmed
    assert await num_messages(cluster) == 2, "a name stands there once"
    assert await objects.delete_unchanged(now)
    assert not await objects.confirm(now), "it is gone, and stays so"
    assert await num_messages(cluster) == 0


async def test_erasing_leaves_what_was_stored_meanwhile(
    cluster: Cluster, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objects.put("a", b"1")
    erase_pieces = objects.erase_pieces

    async def replaced_meanwhile(piece_id: str) -> None:
        await erase_pieces(piece_id)
        await objects.put("a", b"2")

    monkeypatch.setattr(Objects, "erase_pieces", lambda _, piece_id: replaced_meanwhile(piece_id))
    await objects.erase("a")
    assert await objects.get("a") == b"2"


async def test_pieces_whose_owner_died_are_found(cluster: Cluster, objects: Objects) -> None:
    await objects.put("a", b"1")
    for _ in range(2):
        await cluster.js.publish("$O.jf_objects.C.waif", b"a piece")
    assert await objects.nameless(3600.0) == [], "somebody may be storing it just now"
    assert await objects.nameless(0.0) == ["waif"]
    await objects.erase_pieces("waif")
    assert await objects.nameless(0.0) == []
    assert await objects.get("a") == b"1"


async def test_deleting_what_is_not_there_does_nothing(cluster: Cluster, objects: Objects) -> None:
    stream = "OBJ_jf_objects"
    await cluster.js.settle(stream)  # where nothing ever was
    await objects.put("a", b"1")
    await cluster.js.settle(stream)
    entry = await objects.find("a")
    assert entry is not None
    for seq in (entry.seq + 1, entry.seq + 1_000):
        await cluster.js.erase_message(stream, seq)
    assert await num_messages(cluster) == 2
    await objects.delete("a")
    await cluster.js.erase_message(stream, entry.seq)


async def test_many_who_keep_an_object_store_it_once(cluster: Cluster, objects: Objects) -> None:
    catalog = ModelCatalog(cluster)
    await asyncio.gather(*(catalog.keep_object("a", lambda: b"1") for _ in range(8)))
    await catalog.keep_object("a", lambda: b"1")
    kept = await objects.find("a")
    assert kept is not None
    assert kept.is_confirmed
    await catalog.keep_object("a", lambda: b"1")
    again = await objects.find("a")
    assert again is not None
    assert again.seq == kept.seq, "it was confirmed a moment ago"
    assert await objects.get("a") == b"1"


async def test_a_full_store_keeps_no_worker_from_serving_what_is_in_it(
    cluster: Cluster, objects: Objects
) -> None:
    catalog = ModelCatalog(cluster)
    await objects.put("a", b"1")
    await fill(cluster.js, STREAM, 1.0)
    await catalog.keep_object("a", lambda: b"1")
    assert await objects.get("a") == b"1"
