"""Messages that are handed over where they are read, and what is sent in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import Header

from shared.config import ClusterConfig
from shared.nats_client.connection import connect, round_trip
from shared.nats_client.prompt_client import prompt
from shared.nats_client.role_client import RoleClient
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def nc(nats_server: NatsServer) -> AsyncIterator[RoleClient]:
    nc = await connect(ClusterConfig(nats_url=nats_server.url), "test")
    yield nc
    await nc.close()


async def test_a_prompt_callback_hears_all_in_order(nc: RoleClient) -> None:
    heard: list[tuple[bytes, dict[str, str] | None]] = []

    @prompt
    async def on_message(message: Msg) -> None:
        heard.append((message.data, message.headers))

    await nc.subscribe("a.*", cb=on_message)
    await nc.publish("a.b", b"1")
    await nc.publish("a.b", b"2", headers={"Name": " x: y\r\nz "})
    await nc.publish("a.b", bytes(900_000))
    await nc.flush()
    assert heard == [(b"1", None), (b"2", {"Name": "x: y  z"}), (bytes(900_000), None)]


async def test_an_error_of_a_callback_harms_no_other_message(nc: RoleClient) -> None:
    heard: list[bytes] = []

    @prompt
    async def on_message(message: Msg) -> None:
        heard.append(message.data)
        if message.data == b"waits":
            await asyncio.sleep(0)
        raise ValueError(message.data)

    errors: list[Exception] = []

    async def on_error(exc: Exception) -> None:
        errors.append(exc)

    nc._error_cb = on_error
    await nc.subscribe("a", cb=on_message)
    for data in (b"1", b"waits", b"2"):
        await nc.publish("a", data)
    await nc.flush()
    assert heard == [b"1", b"waits", b"2"]
    assert [type(exc) for exc in errors] == [ValueError, RuntimeError, ValueError]


async def test_what_is_no_prompt_callback_may_wait(nc: RoleClient) -> None:
    done = asyncio.Event()

    async def on_message(message: Msg) -> None:
        await asyncio.sleep(0)
        done.set()

    await nc.subscribe("a", cb=on_message)
    await nc.publish("a")
    async with asyncio.timeout(5):
        await done.wait()


async def test_requests_get_their_own_answers(nc: RoleClient) -> None:
    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    await nc.subscribe("echo", cb=echo)
    answers = await asyncio.gather(*(nc.request("echo", b"%d" % i, 5) for i in range(100)))
    assert [answer.data for answer in answers] == [b"%d" % i for i in range(100)]
    assert not nc._answers


async def test_a_request_that_nobody_hears(nc: RoleClient) -> None:
    slow: list[str] = []
    nc.on_slow = slow.append
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody", timeout=5)
    assert slow == ["nobody"]


async def test_a_request_without_an_answer(nc: RoleClient) -> None:
    await nc.subscribe("silent", cb=_nothing)
    with pytest.raises(nats.errors.TimeoutError):
        await nc.request("silent", timeout=0.05)
    assert not nc._answers


async def _nothing(_: Msg) -> None: ...


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "a\tb"])
async def test_a_subject_that_is_none_is_refused(nc: RoleClient, subject: str) -> None:
    with pytest.raises(nats.errors.BadSubjectError):
        await nc.publish(subject)
    if subject:
        with pytest.raises(nats.errors.BadSubjectError):
            await nc.publish("a", reply=subject)


async def test_nats_py_names_headers_by_enums(nc: RoleClient) -> None:
    async def echo(message: Msg) -> None:
        await message.respond(b"")

    await nc.subscribe("echo", cb=echo)
    headers: dict[str, str] = {Header.ROLLUP: "sub", "": "no name"}
    assert (await nc.request("echo", timeout=5, headers=headers)).headers == {"Nats-Rollup": "sub"}


async def test_headers_that_would_end_their_line_are_refused(nc: RoleClient) -> None:
    with pytest.raises(nats.errors.BadHeaderError):
        await nc.publish("a", headers={"a\r\nb": "c"})


async def test_what_is_too_large_with_its_headers_is_refused(nc: RoleClient) -> None:
    with pytest.raises(nats.errors.MaxPayloadError):
        await nc.publish("a", bytes(nc.max_payload - 10), headers={"Name": "x"})
    assert await round_trip(nc)


async def test_a_ping_whose_sender_has_gone_is_answered_all_the_same(
    nc: RoleClient, nats_server: NatsServer
) -> None:
    nats_server.pause()
    try:
        with pytest.raises(nats.errors.FlushTimeoutError):
            await nc.flush(0.05)  # type: ignore[arg-type]  # it only waits
    finally:
        nats_server.resume()
    await nc.flush()
    assert await round_trip(nc)


async def test_more_than_the_connection_takes_waits_and_arrives(
    nc: RoleClient, nats_server: NatsServer
) -> None:
    num_heard = 0

    @prompt
    async def on_message(_: Msg) -> None:
        nonlocal num_heard
        num_heard += 1

    await nc.subscribe("a", cb=on_message)
    await nc.flush()
    nats_server.pause()
    for _ in range(20):
        await nc.publish("a", bytes(1_000_000))
        await asyncio.sleep(0)  # a turn of the loop: what it has sent so far is written
    is_kept = bool(nc._pending)  # the system takes no more
    flushing = asyncio.create_task(nc.flush(20))
    await asyncio.sleep(0)
    nats_server.resume()
    await flushing
    assert is_kept
    assert num_heard == 20
