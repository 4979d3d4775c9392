"""What a delivery says of itself, and what becomes of it: against a real server."""

from __future__ import annotations

import datetime
import time

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.errors import BrokerUnavailable
from shared.subjects import Lane
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, make_request
from worker.held.delivery import Acknowledger, Delivery

QUEUED_AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.UTC)
RID = "0" * 32
NANOSECONDS = int(QUEUED_AT.timestamp() * 1000) * 1_000_000


@pytest.mark.parametrize(
    "ack_subject",
    [
        f"$JS.ACK.jf_REQUESTS.pool_batch-2.3.42.77.{NANOSECONDS}.5",
        f"$JS.ACK.hub.ACCHASH.jf_REQUESTS.pool_batch-2.3.42.77.{NANOSECONDS}.5",
        f"$JS.ACK._.ACCHASH.jf_REQUESTS.pool_batch-2.3.42.77.{NANOSECONDS}.5.random",
    ],
)
def test_an_ack_subject_is_read_in_both_forms(ack_subject: str) -> None:
    subject = f"jf.req.pool.batch-2.frontend-1.{RID}"
    message = Msg(Client(), subject=subject, reply=ack_subject, data=b"x")
    delivery = Delivery.from_msg(message)
    assert (delivery.num_delivered, delivery.request_seq) == (3, 42)
    assert (delivery.lane, delivery.num_pending) == (Lane("batch", 2), 5)
    assert abs(delivery.queued_at - QUEUED_AT) < datetime.timedelta(milliseconds=1)
    assert (delivery.data, delivery.ack_subject, delivery.rid) == (b"x", ack_subject, RID)


@pytest.mark.parametrize(
    "ack_subject",
    [
        "",
        "$JS.ACK",
        "$JS.ACK.jf_REQUESTS.pool_batch.1.1.1.soon.0",
        f"$JS.ACK.jf_REQUESTS.pool_batch.1.1.1.{'9' * 400}.0",
        f"$JS.ACK.jf_REQUESTS.pool_batch.1.1.1.{'9' * 5000}.0",
        f"$JS.ACK.jf_REQUESTS.pool_batch.1.1.1.{10**30}.0",
        f"$JS.ACK.jf_REQUESTS.pool_nonsense-x.1.1.1.{NANOSECONDS}.0",
    ],
)
def test_what_is_no_ack_subject_is_refused(ack_subject: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        Delivery.parse(b"", ack_subject, "")


@pytest.mark.integration
async def test_an_ack_is_confirmed_also_the_second_time(stage: Stage) -> None:
    delivery = await stage.submit_and_pull(make_request())
    acks = Acknowledger(stage.cluster.nc, timeout_s=20.0)
    await acks.ack(delivery)
    assert await stage.num_queued() == 0
    await acks.ack(delivery)


@pytest.mark.integration
async def test_an_old_deliverys_ack_removes_the_message_too(stage: Stage) -> None:
    delivery = await stage.submit_and_pull(make_request())
    await stage.redeliver(delivery)
    await Acknowledger(stage.cluster.nc).ack(delivery)
    assert await stage.num_queued() == 0


@pytest.mark.integration
async def test_a_nak_with_a_delay_comes_back_after_it(stage: Stage) -> None:
    delivery = await stage.submit_and_pull(make_request())
    started = time.monotonic()
    await Acknowledger(stage.cluster.nc).nak(delivery, delay_s=0.3)
    again = await stage.pull()
    assert time.monotonic() - started >= 0.3
    assert (again.num_delivered, again.request_seq) == (2, delivery.request_seq)


@pytest.mark.integration
async def test_only_an_ack_can_fail(stage: Stage, nats_server: NatsServer) -> None:
    delivery = await stage.submit_and_pull(make_request())
    nats_server.kill()
    await eventually(lambda: not stage.cluster.nc.is_connected)
    stage.cluster.nc._max_pending_size = 0
    acks = Acknowledger(stage.cluster.nc, timeout_s=0.1)
    await acks.nak(delivery)
    await acks.in_progress(delivery)
    with pytest.raises(BrokerUnavailable):
        await acks.ack(delivery)
    nats_server.start()
