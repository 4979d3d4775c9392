"""Who is the first of an idempotency key, and what the others do: by the store of keys alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from frontend.inference import idempotency
from frontend.inference.idempotency import Absent, IdempotencyStore, KeyedStarts
from frontend.limits.stream_limits import StreamLimits, limited_streams
from frontend.metrics import AcceptanceMetrics, MetricMaker
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import IdempotencyConflict, ServiceUnavailable
from shared.protocol.request import RequestGroup
from shared.storage.stream_room import StreamRoom
from shared.subjects import new_rid
from tests.eventually import eventually
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

KEY, NAME, BODY = "key", "name", "a fingerprint"
UNKNOWN, OVER = Absent.UNKNOWN, Absent.OVER


@dataclass
class Client:
    """A request with a key: what it finds is written here, what it was told to do is kept."""

    joins: list[str | Absent] = field(default_factory=list)
    queues: list[str | Absent] = field(default_factory=lambda: ["queued"])
    done: list[tuple[str, str]] = field(default_factory=list)  # what, with which group
    on_validate: Callable[[], Awaitable[object]] | None = None
    gate: asyncio.Event | None = None  # waited for while it queues
    num_validations: int = 0

    async def validate(self) -> None:
        self.num_validations += 1
        if self.on_validate is not None:
            await self.on_validate()

    async def queue(self, group: RequestGroup, *, is_first: bool) -> str | Absent:
        assert self.num_validations, "what is queued was checked"
        self.done.append(("first" if is_first else "queue", group.group_id))
        if self.gate is not None:
            await self.gate.wait()
        return self.queues.pop(0)

    async def join(self, group: RequestGroup) -> str | Absent:
        self.done.append(("join", group.group_id))
        return self.joins.pop(0)

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in self.done]


@dataclass
class Keys:
    """The keys of one frontend, and its store."""

    store: IdempotencyStore
    metrics: AcceptanceMetrics
    starts: KeyedStarts[str]

    async def start(self, client: Client, body: str = BODY) -> str:
        return await self.starts.start(client, KEY, NAME, body)

    async def hold(self) -> str:
        """Another frontend has given the key a group; returns its id."""
        held = await self.store.get(NAME)
        group = RequestGroup(new_rid(), BODY, 1, "another")
        revision = 0 if held is None else held.revision
        assert (await self.store.write(NAME, group, revision)).is_ours
        return group.group_id

    def count(self, result: str) -> int:
        return int(self.metrics.keyed.labels(result).value)


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@pytest.fixture
def keys(cluster: Cluster) -> Keys:
    subjects = cluster.subjects
    limits = StreamLimits(StreamRoom(cluster.js, limited_streams(subjects), 1.0), subjects)
    store = IdempotencyStore(cluster.bucket(subjects.idempotency_bucket), limits)
    metrics = AcceptanceMetrics(MetricMaker(CollectorRegistry()))
    return Keys(store, metrics, KeyedStarts(store, metrics, "this"))


async def test_the_first_one_queues_and_the_next_one_joins(keys: Keys) -> None:
    first, second = Client(), Client(joins=["joined"])
    assert await keys.start(first) == "queued"
    assert await keys.start(second) == "joined"
    assert (first.steps, second.steps) == (["first"], ["join"])
    assert first.done[0][1] == second.done[0][1]
    assert (keys.count("new"), keys.count("joined")) == (1, 1)
    assert second.num_validations == 0, "it starts nothing"


async def test_a_key_of_another_body_is_a_conflict(keys: Keys) -> None:
    await keys.start(Client())
    for work in (keys.starts.start, keys.starts.joined):
        client = Client(joins=["joined"])
        with pytest.raises(IdempotencyConflict):
            await work(client, KEY, NAME, "another body")
        assert client.steps == []
    assert keys.count("conflict") == 2


async def test_who_loses_the_race_for_a_new_key_joins(keys: Keys) -> None:
    client = Client(joins=["joined"], on_validate=keys.hold)
    assert await keys.start(client) == "joined"
    assert client.steps == ["join"]


async def test_what_is_just_being_queued_is_queued_once_more_not_anew(keys: Keys) -> None:
    """Its frontend may have died before it did: nobody asks it."""
    group_id = await keys.hold()
    client = Client(joins=[UNKNOWN, UNKNOWN])
    assert await keys.start(client) == "queued"
    assert client.done == [("join", group_id), ("join", group_id), ("queue", group_id)]
    assert keys.count("joined") == 1


async def test_what_is_nowhere_for_long_starts_anew(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group may stand in the log, where its results have expired."""
    monkeypatch.setattr(idempotency, "_QUEUEING_S", 0)
    group_id = await keys.hold()
    client = Client(joins=[UNKNOWN, UNKNOWN])
    assert await keys.start(client) == "queued"
    assert client.steps == ["join", "join", "first"]
    assert client.done[-1][1] != group_id
    assert keys.count("renewed") == 1


async def test_what_ended_without_a_result_starts_anew(keys: Keys) -> None:
    group_id = await keys.hold()
    client = Client(joins=[OVER, OVER])
    assert await keys.start(client) == "queued"
    assert client.steps == ["join", "join", "first"]
    assert client.done[-1][1] != group_id
    held = await keys.store.get(NAME)
    assert held is not None
    assert held.group.group_id == client.done[-1][1]


async def test_what_somebody_has_revived_meanwhile_is_joined(keys: Keys) -> None:
    await keys.hold()
    client = Client(joins=[UNKNOWN, "joined"])
    assert await keys.start(client) == "joined"
    assert client.steps == ["join", "join"]


async def test_what_is_being_ended_while_it_is_queued_again_starts_anew(keys: Keys) -> None:
    group_id = await keys.hold()
    client = Client(joins=[UNKNOWN, UNKNOWN], queues=[OVER, "anew"])
    assert await keys.start(client) == "anew"
    assert client.steps == ["join", "join", "queue", "first"]
    assert client.done[-1][1] != group_id


async def test_who_loses_the_race_for_a_renewal_joins(keys: Keys) -> None:
    await keys.hold()
    renewed: list[str] = []

    async def renew() -> None:
        renewed.append(await keys.hold())

    client = Client(joins=[OVER, OVER, "joined"], on_validate=renew)
    assert await keys.start(client) == "joined"
    assert client.done[-1] == ("join", renewed[-1])
    assert client.steps == ["join"] * 3


async def test_a_key_that_ends_again_and_again_is_given_up(keys: Keys) -> None:
    await keys.hold()
    client = Client(joins=[OVER] * 16, on_validate=keys.hold)
    with pytest.raises(ServiceUnavailable, match="again and again"):
        await keys.start(client)
    assert client.steps == ["join"] * 16


async def test_where_nothing_is_started_a_key_is_joined_or_free(keys: Keys) -> None:
    async def joined(client: Client) -> str | None:
        return await keys.starts.joined(client, KEY, NAME, BODY)

    assert await joined(Client()) is None
    await keys.hold()
    assert await joined(Client(joins=[OVER])) is None
    assert await joined(Client(joins=["joined"])) == "joined"
    assert keys.count("joined") == 1


async def test_clients_of_one_frontend_wait_for_the_first_of_them(keys: Keys) -> None:
    first, second = Client(gate=asyncio.Event()), Client(joins=["joined"])
    starting = asyncio.create_task(keys.start(first))
    await eventually(lambda: first.steps)
    waiting = asyncio.create_task(keys.start(second))
    for _ in range(3):
        await keys.store.get(NAME)  # as long as it would take to look at the key
    assert second.steps == []
    assert first.gate is not None
    first.gate.set()
    assert (await starting, await waiting) == ("queued", "joined")
