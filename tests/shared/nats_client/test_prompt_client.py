"""Callbacks that never wait hear messages where they are read; answers find their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import Header

from shared.config import ClusterConfig
from shared.nats_client.connection import Reconnects, connect, round_trip
from shared.nats_client.prompt_client import prompt
from shared.nats_client.role_client import RoleClient
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
def reconnects() -> Reconnects:
    return Reconnects()


@pytest.fixture
async def nc(nats_server: NatsServer, reconnects: Reconnects) -> AsyncIterator[RoleClient]:
    config = ClusterConfig(nats_url=nats_server.url)
    nc = await connect(config, "test", reconnects=reconnects)
    yield nc
    await nc.close()


async def test_a_prompt_callback_hears_all_in_order(nc: RoleClient) -> None:
    heard: list[tuple[bytes, dict[str, str] | None]] = []

    @prompt
    async def on_message(message: Msg) -> None:
        heard.append((message.data, message.headers))

    await nc.subscribe("a.*", cb=on_message)
    await nc.publish("a.b", b"1")
    await nc.publish("a.b", b"2", headers={"Name": "x"})
    await nc.publish("a.b", b"2", headers={Header.ROLLUP: "sub"})
    await nc.publish("a.b", b"3", headers={"Name": " x\r\nOther: y"})
    await nc.publish("a.b", bytes(900_000))
    for wrong in ("", "a b", "a.b\r\nPUB a.b 0"):
        with pytest.raises(nats.errors.BadSubjectError):
            await nc.publish(wrong, b"4")
    assert await round_trip(nc)
    assert heard == [
        (b"1", None),
        (b"2", {"Name": "x"}),
        (b"2", {"Nats-Rollup": "sub"}),
        (b"3", {"Name": "x  Other: y"}),
        (bytes(900_000), None),
    ]
    assert nc.stats["in_msgs"] == 5 + 1  # the round trip


async def test_an_error_of_a_callback_harms_no_other_message(nc: RoleClient) -> None:
    heard: list[bytes] = []

    @prompt
    async def on_message(message: Msg) -> None:
        heard.append(message.data)
        raise ValueError(message.data)

    errors: list[Exception] = []

    async def on_error(exc: Exception) -> None:
        errors.append(exc)

    nc._error_cb = on_error
    await nc.subscribe("a", cb=on_message)
    await nc.publish("a", b"1")
    await nc.publish("a", b"2")
    assert await round_trip(nc)
    assert heard == [b"1", b"2"]
    assert [type(exc) for exc in errors] == [ValueError, ValueError]


async def test_a_server_whose_messages_are_heard_slowly_is_not_taken_for_dead(
    nc: RoleClient,
) -> None:
    heard: list[Msg] = []
    done = asyncio.Event()

    @prompt
    async def on_message(message: Msg) -> None:
        await asyncio.sleep(0.05)
        heard.append(message)
        if len(heard) == 60:
            done.set()

    nc.options["ping_interval"] = 0.1
    await nc.subscribe("a", cb=on_message)
    for _ in range(60):
        await nc.publish("a", b"x")
    async with asyncio.timeout(20):  # the first ping is sent after 1.5 s, when they wait
        await done.wait()
    assert nc.stats["reconnects"] == 0


async def test_a_long_backlog_leaves_the_loop_to_others(nc: RoleClient) -> None:
    num_heard = num_turns = 0
    done = asyncio.Event()

    @prompt
    async def on_message(_: Msg) -> None:
        nonlocal num_heard
        num_heard += 1
        if num_heard == 1000:
            done.set()

    await nc.subscribe("a", cb=on_message)
    for _ in range(1000):
        await nc.publish("a")
    while not done.is_set():
        await asyncio.sleep(0)
        num_turns += num_heard > 0
    assert num_turns >= 1000 // 64


async def test_a_subscription_that_ends_is_left_alone(nc: RoleClient) -> None:
    heard: list[bytes] = []

    @prompt
    async def on_message(message: Msg) -> None:
        heard.append(message.data)

    ended = await nc.subscribe("a", cb=on_message)
    await nc.publish("a", b"before")
    await ended.drain()
    await nc.publish("a", b"behind")
    assert await round_trip(nc)
    assert heard == [b"before"]


async def test_a_flush_comes_behind_what_was_sent(
    nc: RoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a subscription that drains is gone before the server knows, and what comes is lost."""
    written: list[bytes] = []
    transport = nc._transport
    assert transport is not None
    write, write_lines = transport.write, transport.writelines

    def note(data: bytes) -> None:
        written.append(data)
        write(data)

    def note_lines(lines: list[bytes]) -> None:
        written.extend(lines)
        write_lines(lines)

    monkeypatch.setattr(transport, "write", note)
    monkeypatch.setattr(transport, "writelines", note_lines)
    ending = await nc.subscribe("a", cb=nc._request_sub_callback)
    await ending.drain()
    assert [line.split()[0] for line in written] == [b"SUB", b"UNSUB", b"PING"]


async def test_both_ways_outlive_a_server_that_starts_anew(
    nc: RoleClient, reconnects: Reconnects, nats_server: NatsServer
) -> None:
    heard, is_back = asyncio.Event(), asyncio.Event()

    @prompt
    async def on_message(_: Msg) -> None:
        heard.set()

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async def on_back() -> None:
        is_back.set()

    reconnects.follow(on_back)
    await nc.subscribe("a", cb=on_message)
    await nc.subscribe("echo", cb=echo)
    assert (await nc.request("echo", b"1", 5)).data == b"1"
    nats_server.kill()
    nats_server.start()
    async with asyncio.timeout(20):
        await is_back.wait()
        await nc.publish("a")
        await heard.wait()
    assert (await nc.request("echo", b"2", 5)).data == b"2"


async def test_requests_get_their_own_answers(nc: RoleClient) -> None:
    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    await nc.subscribe("echo", cb=echo)
    answers = await asyncio.gather(*(nc.request("echo", b"%d" % i, 5) for i in range(100)))
    assert [answer.data for answer in answers] == [b"%d" % i for i in range(100)]
    assert not nc._resp_map


async def test_a_request_that_nobody_hears(nc: RoleClient) -> None:
    slow: list[str] = []
    nc.on_slow = slow.append
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody", timeout=5)
    assert slow == ["nobody"]


@pytest.mark.parametrize(("timeout_s", "told"), [(0.05, []), (0.9, ["silent"])])
async def test_a_request_without_an_answer(
    nc: RoleClient, timeout_s: float, told: list[str]
) -> None:
    async def nothing(_: Msg) -> None: ...

    slow: list[str] = []
    nc.on_slow = slow.append
    await nc.subscribe("silent", cb=nothing)
    with pytest.raises(nats.errors.TimeoutError):
        await nc.request("silent", timeout=timeout_s)
    assert slow == told
    assert not nc._resp_map


async def test_a_request_that_is_given_up_leaves_nothing(nc: RoleClient) -> None:
    async def nothing(_: Msg) -> None: ...

    await nc.subscribe("silent", cb=nothing)
    asking = asyncio.create_task(nc.request("silent", timeout=5))
    assert await round_trip(nc)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not nc._resp_map
