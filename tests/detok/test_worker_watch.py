"""Dead workers lose their requests at once; stopped ones are told that they did."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg

from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.silent_peers import Patience
from detok.worker_watch import Holders, Silence, WorkerWatch
from shared.liveness.heartbeat import Heartbeat
from shared.liveness.presence import present
from shared.nats_client.connection import connect
from shared.protocol.codec import decode_control
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.notices import ControlMessage, Fenced
from shared.protocol.reply import TextParams
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.storage.streams import HEARTBEAT_INTERVAL_S, HEARTBEAT_TTL_S, ensure_consumers
from tests.detok.scripted import (
    PATIENCE_S,
    POOL,
    ScriptedWorker,
    Stage,
    make_reply,
    make_rid,
    running_detok,
)
from tests.eventually import Looks, eventually
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


class Queue:
    """Takes requests from the real queue, as a worker does, and remembers its ack subjects."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.ack_subjects: list[str] = []

    async def put(self, rid: str) -> None:
        cluster = self._stage.cluster
        await ensure_consumers(cluster.js, cluster.subjects, POOL, ack_wait_s=60)
        subject = cluster.subjects.request(POOL, "interactive", "", rid)
        await cluster.js.publish(subject, rid.encode())

    async def take(self, timeout_s: float = PATIENCE_S) -> str:
        cluster = self._stage.cluster
        inbox = cluster.nc.new_inbox()
        taken: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        async def on_message(message: Msg) -> None:
            if message.reply and not taken.done():
                taken.set_result(message)

        subscription = await cluster.nc.subscribe(inbox, cb=on_message)
        name = cluster.subjects.consumer(POOL, "interactive")
        stream = cluster.subjects.requests_stream
        await cluster.nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
            b'{"batch": 1, "expires": %d}' % int(timeout_s * 1e9),
            reply=inbox,
        )
        try:
            message = await asyncio.wait_for(taken, timeout_s)
        finally:
            await subscription.unsubscribe()
        return message.reply


def heartbeat_of(stage: Stage, worker: ScriptedWorker, *, has_presence: bool = False) -> Heartbeat:
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    state = WorkerState.READY
    card = WorkerCard(worker.id, POOL, "m", "r", state, has_presence=has_presence)
    return Heartbeat(bucket, f"{POOL}.{worker.id}", lambda: card)


@asynccontextmanager
async def beating(heartbeat: Heartbeat) -> AsyncIterator[None]:
    """At the end its card stays behind, as that of a process that is killed."""

    async def beat() -> None:
        while True:
            await heartbeat.beat()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def notices(stage: Stage) -> list[ControlMessage]:
    heard: list[ControlMessage] = []

    async def on_message(message: Msg) -> None:
        heard.append(decode_control(message.data))

    await stage.cluster.nc.subscribe(stage.cluster.subjects.control(POOL), cb=on_message)
    await stage.cluster.nc.flush()
    return heard


def test_holders_follow_the_log_of_each_request() -> None:
    holders, statuses = Holders(), [DecodeStatus(f"{idx:032x}", 1) for idx in range(3)]

    reply = make_reply("subject", statuses[0].rid)

    def read(idx: int, seq: int, record: OwnershipRecord) -> None:
        statuses[idx].apply_record(seq, record)
        statuses[idx].claimed_at = float(seq)
        holders.note(statuses[idx])

    def claim_by(worker: str) -> Claim:
        return Claim(0, worker, "n", 1, "ack", "hash", TextParams(), reply, POOL)

    for idx in range(3):
        read(idx, 10 + idx, claim_by("a"))
    read(1, 20, claim_by("b"))
    read(2, 21, Release(12, "a"))
    assert holders.claimed_at == {"a": 12.0, "b": 20.0}
    assert holders.held_by("a") == [statuses[0]]
    assert holders.held_by("b") == [statuses[1]]
    holders.drop(statuses[0].rid)
    holders.drop(statuses[2].rid)
    assert list(holders.claimed_at) == ["b"]


def test_silence_counts_from_the_last_frame_or_claim_of_those_that_hold_requests() -> None:
    silence, now = Silence(), time.monotonic()
    silence.keep({"old": now - 100.0, "new": now - 10.0})
    assert silence.longer_than(50.0) == {"old"}
    assert 30.0 < silence.next_s(50.0) <= 40.0
    silence.heard("old", now)
    assert silence.longer_than(50.0) == set()
    silence.keep({"new": now - 200.0})
    assert silence.longer_than(5.0) == {"new"}, "an earlier claim takes back nothing"
    assert silence.longer_than(50.0) == set()
    silence.keep({})
    assert silence.next_s(50.0) == math.inf


async def test_a_report_of_death_gives_the_request_back_in_milliseconds(stage: Stage) -> None:
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        epoch = await worker.claim(rid, ack_subject=await queue.take())
        await worker.write(rid, epoch, 0, stage.ids("fox"))
        await eventually(stage.listener.has_text(rid, "fox"))
        again = asyncio.create_task(queue.take())
        await time_to_err(0.1)
        assert not again.done()
        died_at = time.monotonic()
        await stage.cluster.nc.publish(stage.cluster.subjects.worker_died, worker.id.encode())
        await again
        assert time.monotonic() - died_at < HEARTBEAT_TTL_S - 1
        assert detok.stats.naks == 1
        # A claim that was already in the log when the death became known, but is read later.
        late = make_rid(stage.cluster, 1)
        await queue.put(late)
        await worker.claim(late, ack_subject=await queue.take())
        await queue.take()
        assert detok.stats.naks == 2


async def test_a_heartbeat_that_stops_gives_the_request_back(stage: Stage) -> None:
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    heartbeat = asyncio.create_task(heartbeat_of(stage, worker).run())
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        await worker.claim(rid, ack_subject=await queue.take())
        await time_to_err(2.5)
        assert detok.stats.naks == 0
        heartbeat.cancel()
        await queue.take()
        assert detok.stats.naks == 1


@asynccontextmanager
async def connection_of(stage: Stage, worker: ScriptedWorker) -> AsyncIterator[None]:
    """Of a process of its own; at the end it dies, and the server sees it."""
    nc = await connect(stage.config, worker.id)
    async with present(nc, stage.cluster.subjects, worker.id):
        await nc.flush()
        try:
            yield
        finally:
            await nc.close()


async def test_a_silent_worker_that_is_not_there_loses_its_requests_at_once(
    stage: Stage,
) -> None:
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    heartbeat = heartbeat_of(stage, worker, has_presence=True)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        async with connection_of(stage, worker), beating(heartbeat):
            epoch = await worker.claim(rid, ack_subject=await queue.take())
            await worker.write(rid, epoch, 0, stage.ids("fox"))
            await time_to_err(1.5)  # as long as it is there, it may take its time
            assert detok.stats.naks == 0
            await heartbeat.beat()  # its card does not expire soon
        died_at = time.monotonic()
        await queue.take()
        assert time.monotonic() - died_at < HEARTBEAT_TTL_S - 1  # 1.1 s on a quiet machine
        # Whoever takes it finds no heartbeat, and does not wait for it.
        cards = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
        assert await cards.entries() == []


async def test_a_silent_worker_that_is_there_does_not_delay_the_death_of_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.liveness.presence._ANSWER_S", 60.0)  # one that is there answers not
    silent, dying, queue = stage.worker("silent"), stage.worker("dying"), Queue(stage)
    beats = [heartbeat_of(stage, worker, has_presence=True) for worker in (silent, dying)]
    rids = [make_rid(stage.cluster), make_rid(stage.cluster, 1)]
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        async with connection_of(stage, silent), beating(beats[0]):
            await queue.put(rids[0])
            await silent.claim(rids[0], ack_subject=await queue.take())
            async with connection_of(stage, dying), beating(beats[1]):
                await time_to_err(1.5)  # both cards are read, and the silent one is asked for
                await queue.put(rids[1])
                await dying.claim(rids[1], ack_subject=await queue.take())
            died_at = time.monotonic()
            await queue.take()
            assert time.monotonic() - died_at < HEARTBEAT_TTL_S - 1
            assert detok.stats.naks == 1


async def test_a_worker_that_reconnects_keeps_its_requests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(pause_s=0.1, max_pause_s=0.1, absent_s=2.0)
    monkeypatch.setattr("detok.worker_watch._PATIENCE", patience)
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    heartbeat = asyncio.create_task(heartbeat_of(stage, worker, has_presence=True).run())
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        await worker.claim(rid, ack_subject=await queue.take())
        for _ in range(3):
            async with connection_of(stage, worker):
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.8)  # together they are longer than it may be absent
        async with connection_of(stage, worker):
            await time_to_err(0.5)
            assert detok.stats.naks == 0
    heartbeat.cancel()


async def test_heartbeats_that_could_not_be_written_are_no_deaths(stage: Stage) -> None:
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    heartbeat = heartbeat_of(stage, worker)
    async with running_detok(stage.config) as detok:
        watch = detok._worker_watch
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        async with beating(heartbeat):
            await worker.claim(rid, ack_subject=await queue.take())
            await eventually(lambda: worker.id in watch._was_seen)
        watch.writability.note(is_written=False)
        workers = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
        await workers.delete(f"{POOL}.{worker.id}")  # expired while servers chose a leader
        await asyncio.sleep(2.5)  # its write hung, and had to time out first
        running = asyncio.create_task(heartbeat.run())
        await time_to_err(2.5)
        assert detok.stats.naks == 0
        running.cancel()
        await queue.take()  # this time it is dead
        assert detok.stats.naks == 1


async def test_a_claim_of_a_worker_never_seen_waits_for_the_ttl(stage: Stage) -> None:
    worker, queue, rid = stage.worker(), Queue(stage), make_rid(stage.cluster)
    async with running_detok(stage.config) as detok:
        await queue.put(rid)
        ack_subject, started = await queue.take(), time.monotonic()
        await worker.claim(rid, ack_subject=ack_subject)
        await queue.take()
        assert time.monotonic() - started > HEARTBEAT_TTL_S
        assert detok.stats.naks == 1


async def test_only_the_last_claim_is_given_back(stage: Stage) -> None:
    dead, alive, queue = stage.worker("dead"), stage.worker("alive"), Queue(stage)
    rid = make_rid(stage.cluster)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await queue.put(rid)
        ack_subject = await queue.take()
        epoch = await dead.claim(rid, ack_subject=ack_subject)
        await alive.claim(rid, prev=epoch, ack_subject=ack_subject)
        await stage.cluster.nc.publish(stage.cluster.subjects.worker_died, dead.id.encode())
        await time_to_err(0.5)
        assert detok.stats.naks == 0


async def test_a_claim_that_was_overtaken_unread_is_let_alone(stage: Stage) -> None:
    """The detokenizer lags: to it the dead worker still holds the request."""
    cluster, rid = stage.cluster, make_rid(stage.cluster)
    dead, alive = stage.worker("dead"), stage.worker("alive")
    naks: list[Msg] = []

    async def on_nak(message: Msg) -> None:
        naks.append(message)

    await cluster.nc.subscribe("ack.*", cb=on_nak)
    epoch = await dead.claim(rid, ack_subject="ack.x")
    stored = await cluster.ownership.last(rid)
    assert stored is not None
    status = DecodeStatus(rid, epoch)
    status.apply_record(epoch, stored.record)
    holders = Holders()
    holders.note(status)
    watch = WorkerWatch(cluster, DetokStats(), lambda: [holders])
    task = asyncio.create_task(watch.run())
    await alive.claim(rid, prev=epoch)
    await cluster.nc.flush()
    async for _ in Looks():  # from when it listens
        await cluster.nc.publish(cluster.subjects.worker_died, dead.id.encode())
        if status.nakked_epoch == epoch:
            break
    await cluster.nc.flush()
    assert naks == []
    task.cancel()
    await asyncio.wait([task])


async def test_a_new_claim_tells_the_old_writer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detok.fence_notices._INTERVAL_S", 600.0)
    old, new, rid = stage.worker("old"), stage.worker("new"), make_rid(stage.cluster)
    heard = await notices(stage)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        epoch = await old.claim(rid)
        newer = await new.claim(rid, prev=epoch)
        await eventually(lambda: heard == [Fenced(rid, epoch, old.id)])
        for i in range(20):
            await old.write(rid, epoch, i, [5])
        await new.write(rid, newer, 0, stage.ids("fox"))
        await eventually(stage.listener.has_text(rid, "fox"))
        assert heard == [Fenced(rid, epoch, old.id)]
        assert detok.stats.fenced_entries == 20
        monkeypatch.setattr("detok.fence_notices._INTERVAL_S", 0.0)  # it has passed
        await old.write(rid, epoch, 20, [5])
        await eventually(lambda: len(heard) == 2)


async def test_a_worker_that_did_not_hear_of_the_end_is_told(stage: Stage) -> None:
    worker, rid = stage.worker(), make_rid(stage.cluster)
    heard = await notices(stage)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        epoch = await worker.claim(rid)
        await stage.cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "f"))
        await eventually(stage.listener.has_finished(rid))
        assert heard == []
        await worker.write(rid, epoch, 0, [5])
        await eventually(lambda: heard == [Fenced(rid, epoch, worker.id)])


@pytest.mark.parametrize("ack_subject", ["jf.ctl.pool.x", "$JS.ACK.jf_TOKENS.c.1.1.1.1.0", ""])
async def test_nothing_but_a_delivery_is_given_back(stage: Stage, ack_subject: str) -> None:
    worker, rid = stage.worker(), make_rid(stage.cluster)
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    for subject in ("jf.ctl.pool.x", "$JS.ACK.jf_TOKENS.>"):
        await stage.cluster.nc.subscribe(subject, cb=hear)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        epoch = await worker.claim(rid, ack_subject=ack_subject)
        await stage.cluster.nc.publish(stage.cluster.subjects.worker_died, worker.id.encode())
        holders = detok._partitions[stage.cluster.subjects.partition(rid)].holders
        await eventually(lambda: worker.id in holders.claimed_at)
        [status] = holders.held_by(worker.id)
        await eventually(lambda: status.nakked_epoch == epoch)
        assert detok.stats.naks == 0
    assert heard == []
