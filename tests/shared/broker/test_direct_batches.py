"""Batched direct gets: in order, none left out; what was lost on its way is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.broker.jetstream import JetStream
from shared.errors import BrokerUnavailable
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

NUM_STORED = 5


class LossyClient(Client):
    """One message of each subscription with a callback never arrives."""

    lost = -1  # which, from 0 on; that behind the last one says that it was the last

    async def subscribe(  # type: ignore[override]
        self, subject: str, *, cb: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        num_received = 0

        async def receive(message: Msg) -> None:
            nonlocal num_received
            num_received += 1
            if num_received - 1 != self.lost:
                await cb(message)

        return await super().subscribe(subject, cb=receive)


async def stored(url: str) -> LossyClient:
    nc = LossyClient()
    await nc.connect(url)
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["a.*"], allow_direct=True)
    for seq in range(2 * NUM_STORED):
        await js.publish(f"a.{seq % 2}", b"%d" % seq)
    return nc


@pytest.mark.parametrize("batch", [2, NUM_STORED, 100])
async def test_all_come_in_order(nats_server: NatsServer, batch: int) -> None:
    nc = await stored(nats_server.url)
    try:
        js = JetStream(nc)
        scanned = [message.data async for message in js.direct_scan("S", "a.0", batch=batch)]
        assert scanned == [b"0", b"2", b"4", b"6", b"8"]
        assert [message.seq for message in await js.direct_batch("S", "a.*", 4, 3)] == [4, 5, 6]
        assert await js.direct_batch("S", "a.0", 10, 3) == []
        assert await js.direct_batch("S", "b.0", 1, 3) == []
    finally:
        await nc.close()


@pytest.mark.parametrize("lost", range(NUM_STORED))
async def test_a_message_that_was_lost_on_its_way_is_not_taken_for_absent(
    nats_server: NatsServer, lost: int
) -> None:
    nc = await stored(nats_server.url)
    try:
        js = JetStream(nc)
        nc.lost = lost
        with pytest.raises(BrokerUnavailable, match=r"a\.0 some were lost"):
            await js.direct_batch("S", "a.0", 1, NUM_STORED)
        nc.lost = -1
        assert len(await js.direct_batch("S", "a.0", 1, NUM_STORED)) == NUM_STORED
    finally:
        await nc.close()


async def test_a_lost_end_is_no_answer(nats_server: NatsServer) -> None:
    nc = await stored(nats_server.url)
    try:
        nc.lost = NUM_STORED
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await JetStream(nc, timeout_s=0.3).direct_batch("S", "a.0", 1, NUM_STORED)
    finally:
        await nc.close()
