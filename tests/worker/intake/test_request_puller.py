"""What a worker asks the queue for: against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from shared.errors import BrokerError
from shared.protocol.request import GenerateRequest
from shared.subjects import LANES, NUM_LANES
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err
from tests.worker.io_stage import POOL, Stage, make_request
from worker.held.delivery import Acknowledger, Delivery
from worker.intake.request_puller import LANE_WEIGHTS, RequestPuller

pytestmark = pytest.mark.integration


@dataclass
class Room:
    """Stands for the worker: so many slots, and what they hold."""

    num_slots: int
    held: list[Delivery] = field(default_factory=list)
    seen: list[Delivery] = field(default_factory=list)
    num_asked: int = 0

    def num_credits(self) -> int:
        self.num_asked += 1
        return max(0, self.num_slots - len(self.held))

    def on_delivery(self, delivery: Delivery) -> None:
        self.held.append(delivery)
        self.seen.append(delivery)

    @property
    def rids(self) -> list[str]:
        return [delivery.rid for delivery in self.seen]


@asynccontextmanager
async def pulling(stage: Stage, room: Room) -> AsyncIterator[RequestPuller]:
    cluster = stage.cluster
    puller = RequestPuller(cluster.nc, cluster.subjects, POOL, room.num_credits, room.on_delivery)
    task = asyncio.create_task(puller.run())
    try:
        yield puller
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def submit(stage: Stage, count: int, job_class: str = "interactive") -> list[str]:
    requests: list[GenerateRequest] = [make_request() for _ in range(count)]
    for request in requests:
        await stage.submit(request, job_class)
    return [request.rid for request in requests]


async def consumer_state(stage: Stage, job_class: str = "interactive") -> dict[str, int]:
    subjects = stage.cluster.subjects
    name = subjects.consumer(POOL, job_class)
    info = await stage.cluster.js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{name}")
    return {key: int(info[key]) for key in ("num_pending", "num_ack_pending", "num_waiting")}


@pytest.fixture
def _no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens then has been told, and waited for no tick."""
    monkeypatch.setattr("worker.intake.request_puller._TICK_S", 600.0)


async def watches_all(puller: RequestPuller) -> None:
    """Until the worker knows that there is nothing to do."""
    await eventually(lambda: puller.num_watched == len(LANES))


async def finish_one(stage: Stage, room: Room, puller: RequestPuller) -> None:
    delivery = room.held.pop(0)
    await Acknowledger(stage.cluster.nc).ack(delivery)
    puller.wake()


async def test_no_more_is_pulled_than_there_is_room_for(stage: Stage) -> None:
    room = Room(num_slots=3)
    rids = await submit(stage, 10)
    async with pulling(stage, room) as puller:
        await eventually(lambda: len(room.seen) == 3)
        assert (await consumer_state(stage))["num_pending"] == 7
        for num_finished in range(1, 8):
            await finish_one(stage, room, puller)
            await eventually(lambda: len(room.seen) == 3 + num_finished)  # noqa: B023
            assert len(room.held) + puller.num_asked <= room.num_slots
    assert room.rids == rids


async def test_an_idle_worker_binds_no_more_than_one_request_a_lane(stage: Stage) -> None:
    room = Room(num_slots=4)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        for _ in range(5):  # woken as often as one likes
            puller.wake()
            await time_to_err(0.01)
            assert (puller.num_asked, puller.num_watched) == (0, len(LANES))
        await submit(stage, 7)
        await eventually(lambda: len(room.held) == 4)
        assert (await consumer_state(stage))["num_pending"] == 3


async def test_what_a_watch_brings_without_room_is_one_request_a_lane(stage: Stage) -> None:
    """They are the only ones that are taken and given back: a full worker asks for nothing."""
    room = Room(num_slots=1)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        for lane in LANES[:NUM_LANES]:
            await submit(stage, 5, lane.token)
        await eventually(lambda: len(room.seen) == NUM_LANES)
        await time_to_err(0.3)
        assert len(room.seen) == NUM_LANES
        assert (puller.num_asked, puller.num_watched) == (0, len(LANES) - NUM_LANES)


@pytest.mark.usefixtures("_no_ticks")
async def test_an_idle_worker_hears_of_background_work_and_asks_for_the_rest(stage: Stage) -> None:
    room = Room(num_slots=4)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        rids = await submit(stage, 6, "batch")
        await eventually(lambda: len(room.held) == 4)
        assert room.rids == rids[:4]
        assert (await consumer_state(stage, "batch"))["num_pending"] == 2


@pytest.mark.usefixtures("_no_ticks")
async def test_an_idle_worker_takes_from_every_lane_at_once(stage: Stage) -> None:
    room = Room(num_slots=100)
    async with pulling(stage, room) as puller:
        for lane in LANES[:NUM_LANES]:
            await watches_all(puller)
            room.seen.clear()
            await submit(stage, 12, lane.token)
            await eventually(lambda: len(room.seen) == 12)
            assert {delivery.lane for delivery in room.seen} == {lane}


async def test_busy_lanes_are_served_by_their_weights(stage: Stage) -> None:
    """A worker with one slot, and three lanes that never run dry."""
    room = Room(num_slots=1)
    for lane in LANES[:NUM_LANES]:
        await submit(stage, 60, lane.token)
    async with pulling(stage, room) as puller:
        for num_seen in range(1, 53):
            await eventually(lambda: len(room.seen) >= num_seen)  # noqa: B023
            await finish_one(stage, room, puller)
        await eventually(lambda: len(room.seen) == 53)
    levels = [delivery.lane.level for delivery in room.seen[:52]]
    assert [levels.count(level) for level in range(NUM_LANES)] == [
        4 * weight for weight in LANE_WEIGHTS
    ]
    first, *_ = (levels.index(level) for level in range(NUM_LANES))
    assert first == 0


async def test_a_full_worker_finds_lanes_that_were_empty_before(stage: Stage) -> None:
    """The queue of one lane is long: who comes to a lower one is next, not last."""
    room = Room(num_slots=1)
    await submit(stage, 30, "interactive-2")
    async with pulling(stage, room) as puller:
        for num_seen in range(1, 5):
            await eventually(lambda: len(room.seen) == num_seen)  # noqa: B023
            await finish_one(stage, room, puller)
        await eventually(lambda: len(room.seen) == 5)
        (rid,) = await submit(stage, 1)
        for num_seen in range(6, 8):
            await asyncio.sleep(0.03)  # longer than a lane counts as empty
            await finish_one(stage, room, puller)
            await eventually(lambda: len(room.seen) == num_seen)  # noqa: B023
    assert rid in room.rids[5:7]


async def test_what_dead_workers_held_comes_all_at_once(stage: Stage) -> None:
    """Redeliveries do not count as pending: one is taken as a sign of more."""
    await submit(stage, 40)
    first = Room(num_slots=40)
    async with pulling(stage, first):
        await eventually(lambda: len(first.seen) == 40)
    room = Room(num_slots=64)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        acks, room.num_asked = Acknowledger(stage.cluster.nc), 0
        for delivery in first.seen:
            await acks.nak(delivery)
        await eventually(lambda: len(room.seen) == 40)
        assert room.num_asked < 20, "not one by one"
    assert sorted(room.rids) == sorted(first.rids)


async def test_without_credits_nothing_is_asked_for(stage: Stage) -> None:
    room = Room(num_slots=0)
    await submit(stage, 1)
    async with pulling(stage, room) as puller:
        await eventually(lambda: puller.is_starved)
        assert await consumer_state(stage) == {
            "num_pending": 1, "num_ack_pending": 0, "num_waiting": 0,
        }  # fmt: skip
        room.num_slots = 1
        puller.wake()
        await eventually(lambda: len(room.seen) == 1)


async def test_the_batch_class_gets_what_the_urgent_one_leaves(stage: Stage) -> None:
    room = Room(num_slots=4)
    rids = await submit(stage, 3, "batch")
    async with pulling(stage, room):
        await eventually(lambda: len(room.seen) == 3)
    assert room.rids == rids


async def test_the_urgent_class_comes_first_as_long_as_it_has_something(stage: Stage) -> None:
    room = Room(num_slots=2)
    batch = await submit(stage, 6, "batch")
    urgent = await submit(stage, 6)
    async with pulling(stage, room) as puller:
        for num_finished in range(10):
            await eventually(lambda: len(room.seen) >= 2 + num_finished)  # noqa: B023
            await time_to_err(0.12)  # longer than the urgent class must be quiet
            assert len(room.held) <= 2
            await finish_one(stage, room, puller)
        await eventually(lambda: len(room.seen) == 12)
    assert room.rids == urgent + batch


@pytest.mark.usefixtures("_no_ticks")
async def test_an_idle_worker_takes_batch_work_without_delay(stage: Stage) -> None:
    room = Room(num_slots=1)
    await submit(stage, 5, "batch")
    async with pulling(stage, room) as puller:
        await eventually(lambda: len(room.seen) == 1)
        for num_finished in range(1, 5):
            await finish_one(stage, room, puller)
            await eventually(lambda: len(room.seen) == 1 + num_finished)  # noqa: B023


async def test_pulls_are_made_again_after_a_server_restart(
    stage: Stage, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None is missed: the server takes half the time of a pull at most.
    monkeypatch.setattr("worker.intake.request_puller._EXPIRES_S", 1200.0)
    monkeypatch.setattr("worker.intake.request_puller._HEARTBEAT_S", 600.0)
    room = Room(num_slots=2)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        nats_server.kill()
        nats_server.start()
        await eventually(lambda: stage.cluster.nc.stats["reconnects"] > 0)
        puller.reset()

        async def is_submitted() -> bool:
            try:
                await submit(stage, 1)
            except BrokerError:
                return False
            return True

        await eventually_async(is_submitted)
        await eventually(lambda: len(room.seen) == 1)


async def test_a_missing_consumer_is_not_asked_in_a_hot_loop(stage: Stage) -> None:
    subjects = stage.cluster.subjects
    name = subjects.consumer(POOL, "interactive")
    await stage.cluster.js.api(f"CONSUMER.DELETE.{subjects.requests_stream}.{name}")
    room = Room(num_slots=1)
    async with pulling(stage, room):
        await time_to_err(0.6)
    assert room.num_asked < 20


async def test_what_comes_after_the_stop_still_reaches_the_worker(stage: Stage) -> None:
    room = Room(num_slots=50)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        await submit(stage, 50)
    # Whatever the server delivered was handed on: nothing waits for the ack wait to pass.
    state = await consumer_state(stage)
    assert state["num_ack_pending"] == len(room.seen)
    assert state["num_pending"] == 50 - len(room.seen)


async def test_stopping_without_a_server_ends_soon(stage: Stage, nats_server: NatsServer) -> None:
    room = Room(num_slots=1)
    async with pulling(stage, room) as puller:
        await watches_all(puller)
        nats_server.kill()
        await eventually(lambda: not stage.cluster.nc.is_connected)
        started = time.monotonic()
    assert time.monotonic() - started < 10.0
    nats_server.start()
