"""The NATS micro service: the same bodies, events and errors as over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from frontend.nats.reply import Reply
from shared.errors import ConfigError
from shared.nats_client.connection import round_trip
from shared.protocol.finish import Finish, FinishReason
from tests.eventually import eventually
from tests.frontend.conftest import Stack

pytestmark = pytest.mark.integration

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def ask(stack: Stack, subject: str, body: Any, headers: dict[str, str] | None = None) -> Msg:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stack.caller.request(f"jetflock.{subject}", data, 10, headers=headers)


async def ask_stream(stack: Stack, subject: str, body: Any, until: str = "end") -> list[Msg]:
    nc = stack.caller
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(f"jetflock.{subject}", json.dumps(body).encode(), reply=inbox)
    messages: list[Msg] = []
    while not messages or status_of(messages[-1]) != until:
        messages.append(await subscription.next_msg(timeout=10))
        first = messages[0]
        assert status_of(first) == "accepted", (first.headers, first.data)
    await subscription.unsubscribe()
    return messages


def status_of(message: Msg) -> str | None:
    return (message.headers or {}).get("Jetflock-Status")


async def test_whole_answers(stack: Stack) -> None:
    await stack.start_frontend()
    answer = await ask(stack, "chat.completions", BODY)
    body = json.loads(answer.data)
    assert body["choices"][0]["message"]["content"] == "Hello, world!"
    assert answer.headers is not None
    assert body["id"] == f"chatcmpl-{answer.headers['Jetflock-Request-Id']}"
    completion = json.loads(
        (await ask(stack, "completions", {"model": "tiny", "prompt": "x"})).data
    )
    assert completion["choices"][0]["text"] == "Hello, world!"
    native = json.loads((await ask(stack, "generate", {"text": "x"})).data)
    assert native["text"] == "Hello, world!"
    assert native["output_ids"] == [65, 66, 67]
    assert native["meta_info"]["finish_reason"] == {"type": "stop"}
    assert json.loads((await ask(stack, "models", b"")).data)["data"][0]["id"] == "tiny"


async def test_a_stream_and_its_resumption(stack: Stack) -> None:
    stack.say("a", "é", "c", delay_s=0.03)
    await stack.start_frontend()
    messages = await ask_stream(stack, "chat.completions", {**BODY, "stream": True})
    assert status_of(messages[0]) == "accepted"
    assert messages[0].data == messages[-1].data == b""
    rids = {(message.headers or {})["Jetflock-Request-Id"] for message in messages}
    assert len(rids) == 1
    events = [message for message in messages if message.data]
    assert "".join(content(event) for event in events) == "aéc"
    event_id = (events[2].headers or {})["Jetflock-Event-Id"]
    rest = await ask_stream(stack, "resume", {"event_id": event_id})
    again = [message for message in rest if message.data]
    assert "".join(content(event) for event in events[:3] + again) == "aéc"
    from_start = await ask_stream(stack, "resume", {"rid": rids.pop()})
    assert next(m.data for m in from_start if m.data) == events[0].data


def content(message: Msg) -> str:
    return json.loads(message.data)["choices"][0]["delta"].get("content") or ""


async def test_silence_is_filled_with_signs_of_life(stack: Stack) -> None:
    stack.say("a", "b", delay_s=2.6)
    await stack.start_frontend()
    messages = await ask_stream(
        stack, "completions", {"model": "tiny", "prompt": "x", "stream": True}
    )
    assert [status_of(m) for m in messages].count("waiting") == 2


ERRORS: list[tuple[str, Any, str]] = [
    ("chat.completions", {"model": "other", "messages": BODY["messages"]}, "404"),
    ("chat.completions", {**BODY, "temperature": 9}, "400"),
    ("chat.completions", b"{", "400"),
    ("resume", {"event_id": "junk"}, "400"),
    ("resume", {"rid": "0" * 32}, "404"),
    ("abort", {"rid": "0" * 32}, "404"),
    ("abort", {}, "400"),
]


async def test_errors_follow_the_convention(stack: Stack) -> None:
    await stack.start_frontend()
    for subject, body, code in ERRORS:
        answer = await ask(stack, subject, body)
        error = json.loads(answer.data)["error"]
        assert answer.headers is not None
        assert answer.headers["Nats-Service-Error-Code"] == code, (subject, body)
        assert answer.headers["Nats-Service-Error"] == error["message"]


async def test_an_error_in_a_stream(stack: Stack) -> None:
    stack.say("a", "b", finish=Finish(FinishReason.ERROR, message="broken"))
    await stack.start_frontend()
    messages = await ask_stream(stack, "chat.completions", {**BODY, "stream": True})
    error = messages[-2]
    assert json.loads(error.data)["error"]["message"] == "broken"
    assert (error.headers or {})["Nats-Service-Error-Code"] == "500"


async def test_keys_are_asked_for(stack: Stack) -> None:
    await stack.start_frontend(api_key=("alpha",))
    refused = await ask(stack, "chat.completions", BODY)
    assert (refused.headers or {})["Nats-Service-Error-Code"] == "401"
    answer = await ask(stack, "chat.completions", BODY, {"Authorization": "Bearer alpha"})
    assert json.loads(answer.data)["object"] == "chat.completion"


async def test_abort_and_shutdown_are_told(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("a", "b", gate=gate, never_finish=True)
    running = await stack.start_frontend(shutdown_timeout_s=0.2)
    streams = [
        asyncio.create_task(ask_stream(stack, "chat.completions", {**BODY, "stream": True}, until))
        for until in ("end", "interrupted")
    ]
    await eventually(lambda: len(stack.backend.runs) == 2)
    by_owner = list(stack.backend.runs)
    aborted = await ask(stack, "abort", {"rid": by_owner[0]})
    assert json.loads(aborted.data) == {"rid": by_owner[0], "num_aborted": 1}
    done, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED, timeout=5)
    ended = done.pop().result()
    assert json.loads(ended[-2].data)["error"]["code"] == "cancelled"
    running.frontend.shutdown.ask()
    (interrupted,) = [
        await stream for stream in streams if stream not in done and not stream.done()
    ]
    assert (interrupted[-1].headers or {})["Nats-Service-Error-Code"] == "503"


async def test_two_frontends_share_the_work(stack: Stack) -> None:
    frontends = [await stack.start_frontend(), await stack.start_frontend()]
    for _ in range(12):
        await asyncio.gather(*(ask(stack, "chat.completions", BODY) for _ in range(3)))
    by = {run.reply.frontend_id for run in stack.backend.runs.values()}
    assert by == {running.frontend_id for running in frontends}


async def test_headers_count_in_what_one_message_takes(stack: Stack) -> None:
    """Ids of many choices are long; a message that is too large would cost all callers their
    connection.
    """
    running = await stack.start_frontend()
    service = running.frontend.transports.service
    assert service is not None
    nc = service._nc
    inbox = stack.caller.new_inbox()
    heard = await stack.caller.subscribe(inbox)
    assert await round_trip(stack.caller)
    body, headers = bytes(nc.max_payload - 2000), {"Jetflock-Event-Id": "x" * 3000}
    assert await Reply(nc, inbox).send_body(body, headers) == 413
    told = await heard.next_msg(timeout=10)
    assert (told.headers or {})["Nats-Service-Error-Code"] == "413"
    assert "with its headers" in json.loads(told.data)["error"]["message"]
    assert await Reply(nc, inbox).send_body(body, {}) == 200
    assert (await heard.next_msg(timeout=10)).data == body
    assert nc.stats["reconnects"] == 0


async def test_a_limit_that_no_message_could_hold_is_refused_at_the_start(stack: Stack) -> None:
    told = r"max_response_bytes is 2000000, must be at most 1047552: NATS has max_payload 1048576"
    with pytest.raises(ConfigError, match=told):
        await stack.start_frontend(max_response_bytes=2_000_000)


async def test_its_statistics_count_errors(stack: Stack) -> None:
    await stack.start_frontend()
    await ask(stack, "chat.completions", BODY)
    for _ in range(2):
        await ask(stack, "chat.completions", {})
    told = json.loads((await stack.caller.request("$SRV.STATS.jetflock", b"", 5)).data)
    (stats,) = [each for each in told["endpoints"] if each["name"] == "chat-completions"]
    assert (stats["num_requests"], stats["num_errors"], stats["last_error"]) == (3, 2, "400")
    assert sum(each["num_errors"] for each in told["endpoints"]) == 2
