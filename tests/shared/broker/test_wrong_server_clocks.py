"""Three servers whose clocks are minutes apart: whoever stored a message and whoever tells the time
now, nothing counts as older than it is.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.broker.jetstream import JetStream
from shared.config import ClusterConfig
from shared.nats_client.connection import open_connection
from shared.subjects import LANES
from tests.nats_cluster import BINARY, NatsCluster
from tests.stream_leaders import make_lead
from tests.wrong_clock import server_with_wrong_clock
from worker.held.delivery import Delivery

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

AHEAD_S = {"n1": 300, "n2": 0, "n3": -300}
# Each of them leads behind each other.
LEADERS = ("n1", "n2", "n3", "n1", "n3", "n2", "n1")
STREAM = "queue"
CONSUMER = f"tiny_{LANES[0].token}"
SUBJECT = "queued.{}"
ROUNDING_S = 0.001
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Sent:
    """A message that a leader has stored, and between which moments of our monotonic clock."""

    subject: str
    leader: str
    not_before: float
    not_after: float


@pytest.fixture
async def js(tmp_path: Path) -> AsyncIterator[JetStream]:
    cluster = NatsCluster(tmp_path / "nats")
    for server in cluster.servers:
        copy = tmp_path / f"nats-server-{server.name}"
        server.binary = server_with_wrong_clock(BINARY, AHEAD_S[server.name], copy)
    try:
        await asyncio.to_thread(cluster.start)
        async with open_connection(ClusterConfig(nats_url=cluster.url), "test") as nc:
            yield JetStream(nc)
    finally:
        cluster.kill()


async def send(js: JetStream, leader: str, number: int) -> Sent:
    not_before = time.monotonic()
    subject = SUBJECT.format(number)
    await js.publish(subject, b"")
    return Sent(subject, leader, not_before, time.monotonic())


async def next_delivery(js: JetStream) -> Delivery:
    """Of a message that none was told of yet."""
    inbox = js.nc.new_inbox()
    subscription = await js.nc.subscribe(inbox)
    await js.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", b"", reply=inbox)
    message = await subscription.next_msg(30)
    await subscription.unsubscribe()
    return Delivery.parse(message.data, message.reply, message.subject)


async def stamps_of(js: JetStream, sent: Sent) -> set[datetime.datetime]:
    """When it was stored, as both ways of reading it tell."""
    found = await js.get_last(STREAM, sent.subject)
    (scanned,) = [each async for each in js.direct_scan(STREAM, sent.subject)]
    assert found is not None
    return {found.time, scanned.time}


async def check_age(js: JetStream, leader: str, sent: Sent, stamps: set[datetime.datetime]) -> None:
    """By the clock of who leads now: never greater than the truth, and the truth where that one
    stored it and has led ever since.
    """
    told_after = time.monotonic()
    clock = await js.clock(STREAM)
    for stamp in stamps:
        asked_at = time.monotonic()
        age_s = clock.age_s(stamp)
        assert 0 <= age_s <= time.monotonic() - sent.not_before + ROUNDING_S, (leader, sent)
        if sent.leader == leader:
            truth_s = told_after - sent.not_after + asked_at - clock.read_at
            assert age_s >= truth_s - ROUNDING_S, (leader, sent)


async def test_nothing_counts_as_older_than_it_is(js: JetStream) -> None:
    config: dict[str, Any] = {"name": STREAM, "subjects": [SUBJECT.format(">")], "num_replicas": 3}
    await js.api(f"STREAM.CREATE.{STREAM}", {**config, "storage": "file", "allow_direct": True})
    durable = {"durable_name": CONSUMER, "ack_policy": "explicit"}
    await js.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": durable})
    numbers = itertools.count()
    old: list[Sent] = []
    for leader in LEADERS:
        await make_lead(js, STREAM, leader)
        for sent in old:
            earlier = Sent(sent.subject, "", sent.not_before, sent.not_after)
            await check_age(js, leader, earlier, await stamps_of(js, earlier))
        if old:
            delivery = await next_delivery(js)
            await check_age(js, leader, old[-1], {delivery.queued_at})
        new = [await send(js, leader, next(numbers)) for _ in range(2)]
        delivery = await next_delivery(js)
        await check_age(js, leader, new[0], await stamps_of(js, new[0]) | {delivery.queued_at})
        old.append(new[1])
