"""The Python client against a frontend that follows a script, through a real nats-server."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jetflock.client.endpoints
import jetflock.client.service
import jetflock.client.stream_reader
from jetflock import Client
from jetflock.client.link import ConnectionChanged, Link
from jetflock.client.result import ToolCall, ToolCallDiff
from jetflock.errors import (
    ApiError,
    BadRequest,
    Cancelled,
    ClientError,
    IdempotencyConflict,
    NotAccepted,
    QueueFull,
    RequestTooLarge,
    ResumeConflict,
    StreamLost,
)
from shared.nats_client.connection_end import abort_transport
from tests.jetflock.scripted_service import PIECES, RID, TEXT, ScriptedService, Story, event_id
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


async def tell_two(story: Story) -> None:
    """And fall silent, but for signs of life."""
    await story.accept()
    if not story.is_resumed:
        await story.tell(2)
    while True:
        await story.pause(0.1)
        await story.status("waiting")


@pytest.fixture
async def service(nats_server: NatsServer) -> AsyncIterator[ScriptedService]:
    service = await ScriptedService.start(nats_server.url)
    yield service
    await service.close()


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with Client(nats_server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetflock.client.stream_reader, "SILENCE_S", 0.5)
    monkeypatch.setattr(jetflock.client.stream_reader, "ASK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(jetflock.client.service, "ACCEPT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(jetflock.client.endpoints, "ACCEPT_TIMEOUT_S", 0.5)


async def test_a_request_gives_its_whole_text(client: Client, service: ScriptedService) -> None:
    result = await client.generate_async("Tell me", max_tokens=9)
    assert result.text == str(result) == TEXT
    assert result.finish_reason == "stop"
    assert result.choices[0].token_ids == list(range(1, len(PIECES) + 1))
    assert result.request_id == RID
    assert result.usage is not None
    assert (result.usage.total_tokens, result.usage.cached_tokens) == (3 + len(PIECES), 1)
    assert service.bodies == [{"text": "Tell me", "max_tokens": 9, "stream": True}]
    assert service.headers[0]["X-Resume-Grace"] == "30"
    assert service.aborted == []


async def test_a_stream_gives_the_pieces(client: Client, service: ScriptedService) -> None:
    chunks = [chunk async for chunk in client.generate_async("Tell me")]
    assert [chunk.text_diff for chunk in chunks] == [*PIECES, ""]
    assert chunks[2].event_id == event_id(3)
    assert chunks[-1].finish_reason == "stop"


async def test_the_key_and_the_deadline_travel_along(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    async with Client(nats_server.url, api_key="secret") as client:
        await client.generate_async([1, 2], deadline_s=7)
    assert service.headers[0]["Authorization"] == "Bearer secret"
    assert service.headers[0]["X-Request-Timeout"] == "7"
    assert service.bodies[0]["input_ids"] == [1, 2]


async def test_chat_names_the_only_model(client: Client, service: ScriptedService) -> None:
    await client.generate_async(messages=[{"role": "user", "content": "Hello"}])
    assert service.bodies[0]["model"] == "tale"
    assert service.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_job_is_iterated_and_awaited(client: Client, service: ScriptedService) -> None:
    job = client.generate_async("Tell me")
    with pytest.raises(ClientError, match="not accepted yet"):
        _ = job.request_id
    assert (await job.aaccepted(20)).request_id == RID
    first = await anext(aiter(job))
    result = await job
    assert result.text == TEXT
    assert first.text_diff + "".join([chunk.text_diff async for chunk in job]) == TEXT


async def test_a_lost_event_is_fetched(client: Client, service: ScriptedService) -> None:
    async def lose_the_third(story: Story) -> None:
        await story.accept()
        if not story.is_resumed:
            await story.tell(2)
            story.num_emitted += 1
        await story.rest()

    service.script = lose_the_third
    assert (await client.generate_async("Tell me")).text == TEXT
    assert service.resumed_from == [{"event_id": event_id(2)}]


async def test_a_repeated_event_is_ignored(client: Client, service: ScriptedService) -> None:
    async def stammer(story: Story) -> None:
        await story.accept()
        await story.tell(3)
        await story.piece(2)
        await story.piece(3)
        await story.rest()

    service.script = stammer
    assert [c.text_diff async for c in client.generate_async("Tell me")] == [*PIECES, ""]


async def test_lost_last_events_are_fetched(client: Client, service: ScriptedService) -> None:
    async def lose_the_finish(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()
        else:
            await story.tell(3)
            await story.status("end")

    service.script = lose_the_finish
    assert (await client.generate_async("Tell me")).text == TEXT


async def test_silence_is_ended_by_a_resume(client: Client, service: ScriptedService) -> None:
    async def fall_silent(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()
        else:
            await story.tell(4)

    service.script = fall_silent
    job = client.generate_async("Tell me")
    assert (await job).text == TEXT
    assert job.num_resumes == 1
    assert service.resumed_from == [{"event_id": event_id(4)}]


async def test_signs_of_life_keep_the_stream(client: Client, service: ScriptedService) -> None:
    async def take_its_time(story: Story) -> None:
        await story.accept()
        await story.tell(1)
        for _ in range(8):
            await story.pause(0.1)
            await story.status("waiting")
        await story.rest()

    service.script = take_its_time
    job = client.generate_async("Tell me")
    assert (await job).text == TEXT
    assert job.num_resumes == 0


async def test_silence_before_any_event_resumes_by_id(
    client: Client, service: ScriptedService
) -> None:
    async def accept_only(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()

    service.script = accept_only
    assert (await client.generate_async("Tell me")).text == TEXT
    assert service.resumed_from == [{"rid": RID}]


async def test_who_watches_does_so_behind_a_cut_and_ends_nothing(
    client: Client, service: ScriptedService
) -> None:
    async def tell_on(story: Story) -> None:
        await story.accept()
        if len(service.resumed_from) == 1:
            await story.tell(2)
            headers = {"Nats_Service_Error": "bye", "Nats_Service_Error_Code": "503"}
            await story.send(b"", Jetflock_Status="interrupted", **headers)
        else:
            await story.rest()

    service.script = tell_on
    assert (await client.watch(RID)).text == TEXT
    assert service.resumed_from == [
        {"rid": RID, "watch": True},
        {"event_id": event_id(2), "watch": True},
    ]
    service.script = tell_two
    async with client.watch(RID) as job:
        await job.aaccepted()
    assert service.aborted == []


async def test_a_frontend_that_shuts_down_is_left(client: Client, service: ScriptedService) -> None:
    async def interrupt(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()
        else:
            await story.tell(2)
            headers = {"Nats_Service_Error": "bye", "Nats_Service_Error_Code": "503"}
            await story.send(b"", Jetflock_Status="interrupted", **headers)

    service.script = interrupt
    assert (await client.generate_async("Tell me")).text == TEXT


async def test_resume_waits_for_a_frontend(client: Client, service: ScriptedService) -> None:
    num_refusals = 3

    async def be_away(story: Story) -> None:
        nonlocal num_refusals
        if story.is_resumed and num_refusals:
            num_refusals -= 1
            await story.error(503, "shutting down", "service_unavailable")
        else:
            await story.accept()
            await (story.rest() if story.is_resumed else story.tell(1))

    service.script = be_away
    assert (await client.generate_async("Tell me")).text == TEXT
    assert num_refusals == 0


async def test_the_server_may_restart(
    client: Client, service: ScriptedService, nats_server: NatsServer
) -> None:
    async def tell_half(story: Story) -> None:
        await story.accept()
        await (story.rest() if story.is_resumed else story.tell(4))

    service.script = tell_half
    job = client.generate_async("Tell me")
    assert (await anext(aiter(job))).text_diff == PIECES[0]
    nats_server.kill()
    await asyncio.sleep(0.3)
    nats_server.start()
    assert (await job.aresult(20)).text == TEXT
    assert job.num_resumes >= 1


async def test_a_refused_resume_is_an_error(client: Client, service: ScriptedService) -> None:
    async def refuse(story: Story) -> None:
        if story.is_resumed:
            await story.error(409, "another text", "resume_mismatch")
        else:
            await story.accept()
            await story.tell(1)

    service.script = refuse
    with pytest.raises(ResumeConflict) as caught:
        await client.generate_async("Tell me")
    assert (caught.value.status, caught.value.code) == (409, "resume_mismatch")


async def test_a_stream_that_stays_away_is_lost(
    client: Client, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetflock.client.service, "RESULT_MARGIN_S", 0.0)

    async def vanish(story: Story) -> None:
        if not story.is_resumed:
            await story.accept()
            await story.tell(2)

    service.script = vanish
    with pytest.raises(StreamLost) as caught:
        await client.generate_async("Tell me", deadline_s=1.5)
    assert caught.value.event_id == event_id(2)
    assert caught.value.request_id == RID
    service.script = None
    assert (await client.resume(event_id(2))).text == "".join(PIECES[2:])


async def test_resume_by_request_id_starts_at_the_beginning(
    client: Client, service: ScriptedService
) -> None:
    job = client.resume(RID)
    assert (await job).text == TEXT


async def test_silence_instead_of_acceptance(client: Client, service: ScriptedService) -> None:
    async def say_nothing(story: Story) -> None: ...

    service.script = say_nothing
    with pytest.raises(NotAccepted, match="may run nevertheless"):
        await client.generate_async("Tell me")


async def test_a_key_makes_it_safe_to_ask_again(client: Client, service: ScriptedService) -> None:
    async def answer_the_third(story: Story) -> None:
        if len(service.bodies) == 3:
            await story.accept()
            await story.rest()

    service.script = answer_the_third
    result = await client.generate_async("Tell me", idempotency_key="k")
    assert result.text == TEXT
    assert [body["idempotency_key"] for body in service.bodies] == ["k"] * 3


async def test_leaving_a_keyed_request_does_not_abort_it(
    client: Client, service: ScriptedService
) -> None:
    service.script = tell_two
    for key in ("k", None):
        async with client.generate_async("Tell me", idempotency_key=key) as job:
            await anext(aiter(job))
    assert len(service.aborted) == 1


async def test_a_reused_key_has_its_class(client: Client, service: ScriptedService) -> None:
    async def refuse(story: Story) -> None:
        await story.error(409, "the key 'k' was used", "idempotency_key_reused")

    service.script = refuse
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await client.generate_async("Tell me", idempotency_key="k")


async def test_nobody_there_at_all(client: Client) -> None:
    with pytest.raises(NotAccepted, match="does not run"):
        await client.generate_async("Tell me")
    with pytest.raises(ClientError, match="nobody listens"):
        await client.models_async()


async def test_a_frontend_that_comes_late_is_found(client: Client, nats_server: NatsServer) -> None:
    asking = client.generate_async("Tell me")
    await time_to_err(0.3)  # nobody listens: it asks on
    service = await ScriptedService.start(nats_server.url)
    assert (await asking).text == TEXT
    await service.close()


async def test_a_refusal_has_its_class(client: Client, service: ScriptedService) -> None:
    async def refuse(story: Story) -> None:
        await story.error(429, "the queue is full", "queue_full")

    service.script = refuse
    with pytest.raises(QueueFull, match="the queue is full") as caught:
        await client.generate_async("Tell me")
    assert (caught.value.code, caught.value.param) == ("queue_full", "p")


async def test_an_error_ends_the_stream(client: Client, service: ScriptedService) -> None:
    async def break_off(story: Story) -> None:
        await story.accept()
        await story.tell(2)
        await story.error(499, "cancelled", "cancelled")
        await story.status("end")

    service.script = break_off
    texts: list[str] = []

    async def read() -> None:
        async for chunk in client.generate_async("Tell me"):
            texts.append(chunk.text_diff)  # noqa: PERF401 - it ends with an exception

    with pytest.raises(Cancelled):
        await read()
    assert texts == list(PIECES[:2])


async def test_leaving_with_a_job_aborts_it(client: Client, service: ScriptedService) -> None:
    service.script = tell_two
    async with client.generate_async("Tell me") as job:
        await anext(aiter(job))
    assert service.aborted == [RID]
    service.script = None
    async with client.generate_async("Tell me") as job:
        await job
    assert service.aborted == [RID]


async def test_who_stops_waiting_leaves_it_running(
    client: Client, service: ScriptedService
) -> None:
    go_on = asyncio.Event()

    async def wait_in_the_middle(story: Story) -> None:
        await story.accept()
        await story.tell(2)
        await go_on.wait()
        await story.rest()

    service.script = wait_in_the_middle
    job = client.generate_async("Tell me")
    with pytest.raises(TimeoutError):
        await job.aresult(0.05)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(job.result, 0.05)
    async for _ in job:
        break
    assert not job.done()
    go_on.set()
    assert (await job.aresult(20)).text == TEXT
    assert job.done()
    assert job.result(0).text == TEXT
    assert service.aborted == []


async def test_aborting(client: Client, service: ScriptedService) -> None:
    service.script = tell_two
    job = client.generate_async("Tell me")
    assert await job.aabort() == await asyncio.to_thread(job.abort) == 1
    assert await client.abort_async(RID) == 1
    assert service.aborted == [RID, RID, RID]


async def test_a_list_of_prompts_comes_back_in_order(
    client: Client, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetflock.client.service, "MAX_AT_ONCE", 2)
    last_ended = asyncio.Event()
    most_at_once = at_once = 0

    async def tell_the_prompt(story: Story) -> None:
        nonlocal most_at_once, at_once
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        await story.accept()
        if story.body["text"] == "0":
            await last_ended.wait()  # the first one is the last to end
        else:
            await story.pause(0.05)  # others begin meanwhile, if they may
        await story.tell(int(story.body["text"]))
        await story.finish()
        at_once -= 1
        await story.status("end")
        if story.body["text"] == "3":
            last_ended.set()

    service.script = tell_the_prompt
    prompts = ["0", "1", "2", "3"]
    each = [{"seed": int(prompt)} for prompt in prompts]
    results = await asyncio.to_thread(client.generate, prompts, each, max_tokens=9)
    assert [result.text for result in results] == ["".join(PIECES[:i]) for i in range(4)]
    assert most_at_once == 2
    assert {body["text"]: body["seed"] for body in service.bodies} == {p: int(p) for p in prompts}
    with pytest.raises(ValueError, match="4 prompts, and 1 sampling"):
        client.generate(prompts, [{}])


async def test_the_first_error_ends_a_list(client: Client, service: ScriptedService) -> None:
    async def refuse_the_second(story: Story) -> None:
        if story.body["text"] == "b":
            await story.error(400, "no", "invalid_value")
        else:
            await tell_two(story)

    service.script = refuse_the_second
    with pytest.raises(BadRequest, match="no"):
        await asyncio.to_thread(client.generate, ["a", "b"])
    assert service.aborted == [RID]


async def test_an_interrupted_call_aborts_its_requests(
    client: Client, service: ScriptedService
) -> None:
    service.script = tell_two
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.embed_async(["a", "b"], model="m"), 0.3)
    assert service.aborted == [RID]


async def test_ctrl_c_aborts_what_is_waited_for(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    told = asyncio.Event()

    async def tell(story: Story) -> None:
        told.set()
        await tell_two(story)

    service.script = tell
    script = (  # who starts the tests in the background has them ignore SIGINT, and their children
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from jetflock import Client; Client({nats_server.url!r}).generate('x')"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stderr=asyncio.subprocess.PIPE
    )
    await told.wait()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    assert service.aborted == [RID]


async def test_tool_calls_and_reasoning(client: Client, service: ScriptedService) -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, **fields}]}

    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Hm", "reasoning_content": "Hm"},
        {"content": "Look: "},
        call(0, id="c0", type="function", function={"name": "see", "arguments": ""}),
        call(0, function={"arguments": '{"x"'}),
        call(0, function={"arguments": ": 1}"}),
        call(1, id="c1", type="function", function={"name": "go", "arguments": "{}"}),
    ]

    async def think_and_call(story: Story) -> None:
        await story.accept()
        for i, delta in enumerate(deltas):
            await story.chat(i, delta)
        await story.chat(len(deltas), {}, "tool_calls")
        await story.status("end")

    service.script = think_and_call
    job = client.generate_async(messages=[{"role": "user", "content": "Go"}], model="tale")
    chunks = [chunk async for chunk in job]
    result = await job
    assert (result.text, result.reasoning) == ("Look: ", "Hm")
    assert result.tool_calls == [ToolCall("c0", "see", '{"x": 1}'), ToolCall("c1", "go", "{}")]
    assert [chunk.reasoning_diff for chunk in chunks if chunk.reasoning_diff] == ["Hm"]
    diffs = [diff for chunk in chunks for diff in chunk.tool_calls_diff]
    assert diffs[0] == ToolCallDiff(0, "c0", "see")
    assert [diff.arguments for diff in diffs] == ["", '{"x"', ": 1}", "{}"]


async def test_a_shutdown_is_told_to_who_waits(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    service.script = tell_two
    async with Client(nats_server.url) as client:
        job = client.generate_async("Tell me")
        await anext(aiter(job))
    with pytest.raises(StreamLost, match="shut down") as caught:
        await job
    assert caught.value.event_id is not None
    with pytest.raises(ClientError, match="shut down"):
        client.models()
    client.shutdown()
    assert service.aborted == []


async def test_a_shutdown_at_the_moment_in_which_the_server_dies_is_told_too(
    nats_server: NatsServer,
) -> None:
    link = await Link.connect(nats_server.url, None, "", {})
    inbox = link.inbox()
    abort_transport(link._nc)
    await asyncio.sleep(0)  # it has heard of that, and not yet tried to come back
    await link._nc.publish("nobody", b"waits to be sent")
    await link.close()
    with pytest.raises(ConnectionChanged):
        await inbox.next(5)


async def test_any_endpoint_can_be_asked(client: Client, service: ScriptedService) -> None:
    assert (await client.ask_async("models"))["data"] == [{"id": "tale"}]
    aborted = await asyncio.to_thread(client.ask, "abort", {"rid": "x"})
    assert aborted == {"rid": "x", "num_aborted": 1}


async def test_a_body_that_no_message_can_hold(client: Client, service: ScriptedService) -> None:
    with pytest.raises(RequestTooLarge, match="one NATS message takes 1048576"):
        await client.generate_async("x" * (2 << 20))
    most = (1 << 20) - len('{"pad": ""}')
    with pytest.raises(RequestTooLarge, match="with its headers"):  # the server counts them, too
        await client.ask_async("models", {"pad": "x" * (most - 5)})
    assert (await client.ask_async("models"))["data"] == [{"id": "tale"}]


async def test_one_kind_of_prompt_is_needed(client: Client) -> None:
    for both_or_none in ({"prompt": "a", "messages": []}, {}):
        with pytest.raises(TypeError, match="either a prompt or messages"):
            client.generate_async(**both_or_none)  # type: ignore[arg-type]


async def test_no_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"nats://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ClientError, match="cannot connect to NATS"):
        async with Client(url):
            pass
    with pytest.raises(ClientError, match="cannot connect to NATS"), Client(url):
        pass


async def test_the_same_without_an_event_loop(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    def use() -> None:
        with Client(nats_server.url) as client:
            assert client.generate("Tell me").text == TEXT
            job = client.submit("Tell me")
            assert job.request_id == RID
            assert [chunk.text_diff for chunk in job] == [*PIECES, ""]
            assert job.result().text == TEXT
            assert client.resume(event_id(3)).result().text == "".join(PIECES[3:])
            assert client.models() == [{"id": "tale"}]
            service.script = tell_two
            with client.generate_async("Tell me") as left:
                assert next(iter(left)).text_diff == PIECES[0]
            assert service.aborted == [RID]

    await asyncio.to_thread(use)


def test_an_interpreter_ends_beside_a_client_that_nobody_closed(nats_server: NatsServer) -> None:
    script = (
        f"from jetflock import Client; client = Client({nats_server.url!r})\n"
        "try: client.models()\n"
        "except Exception as exc: print(exc)\n"
        "job = client.generate_async('x')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "nobody listens at jetflock.models\n"
    assert done.stderr == ""


def test_an_error_without_a_body_still_says_something() -> None:
    error = ApiError.from_reply(b"", {"Nats-Service-Error": "no", "Nats-Service-Error-Code": "x"})
    assert (error.message, error.status) == ("no", 500)
