"""The simulated broker answers as the real one does: the same scripts, against both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.broker.log_reader import LogReader
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict
from shared.nats_client.connection import connect
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.simulation.broker import Broker
from tests.simulation.connection import Connection, Weather
from tests.simulation.process_loop import ProcessLoop
from tests.simulation.world import World
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

QUEUE = {
    "name": "Q",
    "subjects": ["jf.req.*.*.*.*"],
    "retention": "workqueue",
    "storage": "file",
    "discard": "new",
    "max_msgs": 4,
    "max_msgs_per_subject": 1,
    "discard_new_per_subject": True,
    "duplicate_window": int(120e9),
    "allow_direct": True,
}
LOG = {
    "name": "L",
    "subjects": ["jf.own.*.*", "jf.tok.*.*"],
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "duplicate_window": int(120e9),
    "allow_direct": True,
}
BUCKET = {
    "name": "KV_b",
    "subjects": ["$KV.b.>"],
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "max_msgs_per_subject": 1,
    "max_age": int(1e9),
    "duplicate_window": int(1e9),
    "allow_direct": True,
}
ACK_WAIT_S = 0.6
_DELETE = "$JS.API.STREAM.MSG.DELETE.Q"


class Stand:
    """A connection to either broker, and what the scripts do with it."""

    def __init__(self, nc: Any, restart: Callable[[], Awaitable[None]]) -> None:
        self.nc = nc
        self.js = JetStream(nc)
        self._restart = restart
        self.heard: list[Any] = []
        self._inbox = ""
        self._num_put = 0

    async def make(self) -> None:
        for config in (QUEUE, LOG, BUCKET):
            await self.js.api(f"STREAM.CREATE.{config['name']}", dict(config))
        consumer = {
            "durable_name": "c",
            "filter_subject": "jf.req.p.interactive.*.*",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": int(ACK_WAIT_S * 1e9),
            "max_deliver": -1,
        }
        await self.js.api("CONSUMER.DURABLE.CREATE.Q.c", {"stream_name": "Q", "config": consumer})
        self._inbox = self.nc.new_inbox()
        await self.nc.subscribe(f"{self._inbox}.*", cb=self._on_message)

    async def _on_message(self, message: Msg) -> None:
        self.heard.append(message)

    async def restart(self) -> None:
        await self._restart()

    async def put(self, text: str, msg_id: str | None = None) -> Any:
        self._num_put += 1
        subject = f"jf.req.p.interactive.f.{self._num_put}"
        return await self.js.publish(subject, text.encode(), msg_id=msg_id)

    async def pull(self, pull_id: str, **query: Any) -> None:
        subject = "$JS.API.CONSUMER.MSG.NEXT.Q.c"
        await self.nc.publish(subject, msgspec.json.encode(query), f"{self._inbox}.{pull_id}")

    async def next(self, timeout_s: float = 5.0) -> Any:
        """The next message that came to the pulls' inbox."""
        await eventually(lambda: bool(self.heard), timeout_s)
        return self.heard.pop(0)

    async def next_but_heartbeats(self) -> Any:
        message = await self.next()
        while message.headers and message.headers.get("Status") == "100":
            message = await self.next()
        return message

    async def deliveries(self, count: int) -> list[tuple[str, int]]:
        """Payload and how often it was delivered, of the next ones."""
        return [_told(await self.next()) for _ in range(count)]

    async def silence(self, seconds: float) -> bool:
        await time_to_err(seconds)
        return not self.heard

    async def num_queued(self) -> int:
        return int((await self.js.api("STREAM.INFO.Q"))["state"]["messages"])


def _told(message: Any) -> tuple[str, int]:
    return message.data.decode(), int(message.reply.split(".")[4])


def _status(message: Any) -> str:
    return str(message.headers["Status"])


Script = Callable[[Stand], Awaitable[list[Any]]]


async def compare_and_set(stand: Stand) -> list[Any]:
    js, told = stand.js, []
    told.append((await js.publish("jf.own.0.a", b"1", expected_last=0)).seq)
    told.append((await js.publish("jf.tok.0.w", b"x")).seq)
    for expected in (0, 2, 5):
        with pytest.raises(CasConflict) as caught:
            await js.publish("jf.own.0.a", b"2", expected_last=expected)
        told.append(caught.value.err_code)
    told.append((await js.publish("jf.own.0.a", b"2", expected_last=1)).seq)
    told.append((await js.publish("jf.own.0.b", b"1", expected_last=0)).seq)
    return told


async def message_ids(stand: Stand) -> list[Any]:
    acks = [await stand.put("a", "id1"), await stand.put("b", "id2"), await stand.put("a", "id1")]
    told: list[Any] = [(ack.seq, ack.duplicate) for ack in acks]
    await stand.pull("1", batch=1, expires=int(5e9))
    message = await stand.next()
    await stand.nc.request(message.reply, b"+ACK", 2)
    ack = await stand.put("a", "id1")  # known, although the message is gone
    told.append((ack.seq, ack.duplicate, await stand.num_queued()))
    return told


async def message_ids_after_a_restart(stand: Stand) -> list[Any]:
    for name in ("1", "2"):
        await stand.put(name, name)
    await stand.pull("1", batch=1, expires=int(5e9))
    message = await stand.next()
    await stand.nc.request(message.reply, b"+ACK", 2)
    await stand.restart()
    kept, gone = await stand.put("2", "2"), await stand.put("1", "1")
    return [(kept.seq, kept.duplicate), (gone.seq, gone.duplicate)]


async def a_full_queue(stand: Stand) -> list[Any]:
    for _ in range(4):
        await stand.put("x")
    with pytest.raises(BrokerError) as caught:
        await stand.put("y")
    return [caught.value.err_code]


async def one_message_a_subject(stand: Stand) -> list[Any]:
    js, told = stand.js, []

    async def try_to_put(subject: str) -> Any:
        try:
            return (await js.publish(subject, b"x")).seq
        except BrokerError as exc:
            return (type(exc), str(exc))

    subject = "jf.req.p.interactive.f.a"
    told += [await try_to_put(subject), await try_to_put(subject)]
    told.append(await try_to_put("jf.req.p.batch.f.a"))
    for name in ("b", "c", "d"):
        told.append(await try_to_put(f"jf.req.p.interactive.f.{name}"))
    told.append(await try_to_put(subject))  # the queue is full
    for pattern in ("jf.req.*.*.*.b", "jf.req.*.*.*.z", "jf.req.*.*.*.a"):
        found = await js.get_last("Q", pattern)
        told.append(found and (found.subject, found.seq))
    told.append([message.seq async for message in js.direct_scan("Q", "jf.req.*.*.f.*")])
    await stand.pull("1", batch=2, expires=int(5e9))
    first, second = await stand.next(), await stand.next()
    told += [first.subject, await consumer_counts(stand)]
    await stand.nc.request(first.reply, b"+ACK", 2)
    told += [await consumer_counts(stand), await try_to_put(subject), await try_to_put(subject)]
    told.append(await try_to_put(second.subject))
    return told


async def consumer_counts(stand: Stand) -> tuple[int, int]:
    info = await stand.js.api("CONSUMER.INFO.Q.c")
    return int(info["num_pending"]), int(info["num_ack_pending"])


async def reads(stand: Stand) -> list[Any]:
    js = stand.js
    for subject in ("jf.own.0.a", "jf.tok.0.w", "jf.own.0.b", "jf.own.0.a"):
        await js.publish(subject, subject.encode())
    found = [
        await js.get_last("L", "jf.own.0.a"),
        await js.get_last("L", "jf.own.0.z"),
        await js.get_next("L", "jf.own.0.a", 1),
        await js.get_next("L", "jf.own.0.a", 2),
        await js.get_next("L", "jf.own.0.a", 5),
        await js.get_next("L", "jf.own.0.*", 2),
        await js.get_at("L", 2),
        await js.get_at("L", 9),
    ]
    scans = [
        [message.seq async for message in js.direct_scan("L", pattern, batch=2)]
        for pattern in ("jf.own.>", "jf.tok.0.*", "jf.own.0.z")
    ]
    return [one and (one.subject, one.seq, one.data) for one in found] + scans


async def a_bucket(stand: Stand) -> list[Any]:
    bucket = KvBucket(stand.js, "b")
    told: list[Any] = [await bucket.put("k", b"1"), await bucket.put("k", b"2")]
    with pytest.raises(CasConflict):
        await bucket.put_if("k", b"3", 1)
    told.append(await bucket.put_if("k", b"3", 2))
    told.append([(e.key, e.value, e.revision) for e in await bucket.entries()])
    await bucket.delete("k")
    told += [await bucket.get("k"), await bucket.put_if("k", b"4", 0)]
    await asyncio.sleep(1.6)  # beyond its time
    told += [await bucket.get("k"), await bucket.entries(), await bucket.put_if("k", b"5", 0)]
    return told


async def acks_and_naks(stand: Stand) -> list[Any]:
    for text in ("a", "b", "c"):
        await stand.put(text)
    await stand.pull("1", batch=10, expires=int(20e9))
    first = [await stand.next() for _ in range(3)]
    told: list[Any] = [_told(message) for message in first]
    await stand.nc.publish(first[1].reply, b"-NAK")
    told += await stand.deliveries(1)
    await stand.nc.request(first[1].reply, b"+ACK", 2)  # of the delivery before: not fenced
    await stand.nc.request(first[0].reply, b"+ACK", 2)
    told.append(await stand.num_queued())
    told += await stand.deliveries(1)  # c, when its ack wait is over
    await stand.nc.publish(first[0].reply, b"-NAK")  # of what is gone
    await stand.nc.publish(first[2].reply, b'-NAK {"delay": 100000000}')
    told += await stand.deliveries(1)
    await stand.nc.request(first[2].reply, b"+ACK", 2)
    told.append(await stand.silence(ACK_WAIT_S * 1.5))
    return told


async def an_ack_floor(stand: Stand) -> list[Any]:
    async def floor() -> int:
        info = await stand.js.api("CONSUMER.INFO.Q.c")
        return int(info["ack_floor"]["stream_seq"])

    for text in ("a", "b", "c"):
        await stand.put(text)
    told = [await floor()]
    await stand.pull("1", batch=2, expires=int(20e9))
    first = [await stand.next() for _ in range(2)]
    for message in reversed(first):
        told.append(await floor())
        await stand.nc.request(message.reply, b"+ACK", 2)
    told.append(await floor())
    return told


async def work_in_progress(stand: Stand) -> list[Any]:
    await stand.put("a")
    await stand.pull("1", batch=2, expires=int(20e9))
    message = await stand.next()
    told: list[Any] = [_told(message)]
    for _ in range(4):
        await asyncio.sleep(ACK_WAIT_S / 2)
        await stand.nc.publish(message.reply, b"+WPI")
    told.append(not stand.heard)
    told += await stand.deliveries(1)
    return told


async def pulls_end(stand: Stand) -> list[Any]:
    told: list[Any] = []
    await stand.pull("1", batch=1, no_wait=True)
    message = await stand.next()
    told.append((message.subject[-1], _status(message)))
    # A server that is late may send a heartbeat in the moment of the end, and behind it.
    await stand.pull("2", batch=1, expires=int(1e9), idle_heartbeat=int(0.4e9))
    told.append(_status(await stand.next()))
    told.append(_status(await stand.next_but_heartbeats()))
    await stand.put("a")
    await stand.pull("3", batch=5, no_wait=True)
    told.append(_told(await stand.next_but_heartbeats()))
    return told


async def deletes(stand: Stand) -> list[Any]:
    """One that is delivered, one that waits, and once more: they count no longer."""
    for text in ("a", "b", "c"):
        await stand.put(text)
    await stand.pull("1", batch=1, expires=int(20e9))
    told: list[Any] = await stand.deliveries(1)
    for seq in (1, 2, 2):
        query = msgspec.json.encode({"seq": seq, "no_erase": True})
        answer = msgspec.json.decode((await stand.nc.request(_DELETE, query, 2)).data)
        told.append(answer.get("error", {}).get("err_code"))
    info = await stand.js.api("CONSUMER.INFO.Q.c")
    told += [info["num_pending"], info["num_ack_pending"], await stand.num_queued()]
    await stand.pull("2", batch=2, no_wait=True)
    return told + await stand.deliveries(1)


async def pulls_take_turns(stand: Stand) -> list[Any]:
    await stand.pull("1", batch=2, expires=int(20e9))
    await stand.pull("2", batch=2, expires=int(20e9))
    for text in ("a", "b", "c", "d"):
        await stand.put(text)
    return sorted(await stand.deliveries(4))


async def naks_of_an_earlier_life(stand: Stand) -> list[Any]:
    """Of deliveries that a killed server may have forgotten: every message still comes."""
    for text in ("a", "b", "c"):
        await stand.put(text)
    await stand.pull("1", batch=3, expires=int(20e9))
    first = [await stand.next() for _ in range(3)]
    await stand.restart()
    await stand.nc.request(first[1].reply, b"+ACK", 2)
    await stand.nc.publish(first[2].reply, b"-NAK")
    await stand.pull("2", batch=5, expires=int(20e9))
    came: set[bytes] = set()
    while len(came) < 2:  # one of them may come twice before
        came.add((await stand.next()).data)
    return [sorted(came), await stand.num_queued()]


async def nobody_listens(stand: Stand) -> list[Any]:
    with pytest.raises(NoRespondersError):
        await stand.nc.request("jf.rpc.detok.0", b"", 1)
    return []


async def an_ordered_reader(stand: Stand) -> list[Any]:
    js, told, ends = stand.js, [], []
    for idx in range(3):
        await js.publish(f"jf.tok.0.w{idx}", b"%d" % idx)
    reader = LogReader(
        stand.js,
        "L",
        ["jf.own.0.*", "jf.tok.0.*"],
        2,
        lambda subject, seq, data: told.append((subject, seq, data)),
        lambda: ends.append(len(told)),
    )
    task = asyncio.ensure_future(reader.run())
    await eventually(lambda: bool(ends))
    await js.publish("jf.own.1.b", b"another partition")
    await js.publish("jf.own.0.a", b"claim")
    await stand.restart()
    await js.publish("jf.own.0.c", b"after")
    await eventually(lambda: len(told) == 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return [ends[0], *told, reader.next_seq]


SCRIPTS: list[Script] = [
    compare_and_set,
    message_ids,
    message_ids_after_a_restart,
    a_full_queue,
    one_message_a_subject,
    reads,
    a_bucket,
    acks_and_naks,
    an_ack_floor,
    work_in_progress,
    pulls_end,
    deletes,
    pulls_take_turns,
    naks_of_an_earlier_life,
    nobody_listens,
    an_ordered_reader,
]


async def _on_the_real_one(script: Script, server: NatsServer) -> list[Any]:
    nc = await connect(ClusterConfig(nats_url=server.url), "conformance")

    async def restart() -> None:
        reconnects = nc.stats["reconnects"]
        server.kill()
        server.start()
        await eventually(lambda: nc.stats["reconnects"] > reconnects and nc.is_connected, 30)

    stand = Stand(nc, restart)
    try:
        await stand.make()
        return await script(stand)
    finally:
        await nc.close()


def _on_the_simulated_one(script: Script, *, forgets: bool) -> list[Any]:
    world = World(1)
    broker = Broker(world)
    loop = ProcessLoop(world, "script")  # type: ignore[abstract]
    told: list[list[Any]] = []
    failed: list[BaseException] = []

    async def restart() -> None:
        broker.go_down()
        nc.break_off()
        await asyncio.sleep(0.5)
        broker.come_up(forgets=forgets)
        await eventually(lambda: nc.is_connected)

    async def run() -> None:
        try:
            stand = Stand(nc, restart)
            await stand.make()
            told.append(await script(stand))
        except BaseException as exc:
            failed.append(exc)

    nc = Connection(world, broker, loop, "script", Weather())
    with world.as_time():
        loop.call_soon(lambda: loop.create_task(run()))
        world.run_until(world.now + 60)
    if failed:
        raise failed[0]
    assert told, "the script came to no end"
    return told[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_brokers_tell_the_same(script: Script, nats_server: NatsServer) -> None:
    real = asyncio.run(_on_the_real_one(script, nats_server))
    for forgets in (False, True):
        assert _on_the_simulated_one(script, forgets=forgets) == real
