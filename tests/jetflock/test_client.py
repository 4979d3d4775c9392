"""The Python client against a frontend that follows a script, through a real nats-server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

import jetflock.client
import jetflock.job
from jetflock import Client, SyncClient
from jetflock.errors import (
    ApiError,
    Cancelled,
    ClientError,
    IdempotencyConflict,
    NotAccepted,
    QueueFull,
    RequestTooLarge,
    ResumeConflict,
    StreamLost,
)
from tests.jetflock.scripted_service import PIECES, RID, TEXT, ScriptedService, Story, event_id
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def service(nats_server: NatsServer) -> AsyncIterator[ScriptedService]:
    service = await ScriptedService.start(nats_server.url)
    yield service
    await service.close()


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with await Client.connect(nats_server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetflock.job, "SILENCE_S", 0.5)
    monkeypatch.setattr(jetflock.job, "ASK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(jetflock.client, "ACCEPT_TIMEOUT_S", 0.5)


async def test_a_request_gives_its_whole_text(client: Client, service: ScriptedService) -> None:
    result = await client.generate("Tell me", max_tokens=9)
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
    chunks = [chunk async for chunk in client.stream("Tell me")]
    assert [chunk.text for chunk in chunks] == [*PIECES, ""]
    assert chunks[2].event_id == event_id(3)
    assert chunks[-1].finish_reason == "stop"


async def test_the_key_and_the_deadline_travel_along(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    async with await Client.connect(nats_server.url, api_key="secret") as client:
        await client.generate(input_ids=[1, 2], timeout_s=7)
    assert service.headers[0]["Authorization"] == "Bearer secret"
    assert service.headers[0]["X-Request-Timeout"] == "7"
    assert service.bodies[0]["input_ids"] == [1, 2]


async def test_chat_names_the_only_model(client: Client, service: ScriptedService) -> None:
    await client.submit(messages=[{"role": "user", "content": "Hello"}])
    assert service.bodies[0]["model"] == "tale"
    assert service.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_job_is_iterated_and_awaited(client: Client, service: ScriptedService) -> None:
    job = await client.submit("Tell me")
    assert job.request_id == RID
    first = await anext(aiter(job))
    result = await job
    assert result.text == TEXT
    assert first.text + "".join([chunk.text async for chunk in job]) == TEXT


async def test_a_lost_event_is_fetched(client: Client, service: ScriptedService) -> None:
    async def lose_the_third(story: Story) -> None:
        await story.accept()
        if not story.is_resumed:
            await story.tell(2)
            story.num_told += 1
        await story.rest()

    service.script = lose_the_third
    assert (await client.generate("Tell me")).text == TEXT
    assert service.resumed_from == [{"event_id": event_id(2)}]


async def test_a_repeated_event_is_ignored(client: Client, service: ScriptedService) -> None:
    async def stammer(story: Story) -> None:
        await story.accept()
        await story.tell(3)
        await story.piece(2)
        await story.piece(3)
        await story.rest()

    service.script = stammer
    assert [c.text async for c in client.stream("Tell me")] == [*PIECES, ""]


async def test_lost_last_events_are_fetched(client: Client, service: ScriptedService) -> None:
    async def lose_the_finish(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()
        else:
            await story.tell(3)
            await story.status("end")

    service.script = lose_the_finish
    assert (await client.generate("Tell me")).text == TEXT


async def test_silence_is_ended_by_a_resume(client: Client, service: ScriptedService) -> None:
    async def fall_silent(story: Story) -> None:
        await story.accept()
        if story.is_resumed:
            await story.rest()
        else:
            await story.tell(4)

    service.script = fall_silent
    job = await client.submit("Tell me")
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
    job = await client.submit("Tell me")
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
    assert (await client.generate("Tell me")).text == TEXT
    assert service.resumed_from == [{"rid": RID}]


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
    assert (await client.generate("Tell me")).text == TEXT


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
    assert (await client.generate("Tell me")).text == TEXT
    assert num_refusals == 0


async def test_the_server_may_restart(
    client: Client, service: ScriptedService, nats_server: NatsServer
) -> None:
    async def tell_half(story: Story) -> None:
        await story.accept()
        await (story.rest() if story.is_resumed else story.tell(4))

    service.script = tell_half
    job = await client.submit("Tell me")
    assert (await anext(aiter(job))).text == PIECES[0]
    nats_server.kill()
    await asyncio.sleep(0.3)
    nats_server.start()
    assert (await asyncio.wait_for(job.result(), 20)).text == TEXT
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
        await client.generate("Tell me")
    assert (caught.value.status, caught.value.code) == (409, "resume_mismatch")


async def test_a_stream_that_stays_away_is_lost(
    client: Client, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetflock.client, "_RESULT_MARGIN_S", 0.0)

    async def vanish(story: Story) -> None:
        if not story.is_resumed:
            await story.accept()
            await story.tell(2)

    service.script = vanish
    with pytest.raises(StreamLost) as caught:
        await client.generate("Tell me", timeout_s=1.5)
    assert caught.value.event_id == event_id(2)
    assert caught.value.request_id == RID
    service.script = None
    assert (await (await client.resume(event_id(2)))).text == "".join(PIECES[2:])


async def test_resume_by_request_id_starts_at_the_beginning(
    client: Client, service: ScriptedService
) -> None:
    job = await client.resume(RID)
    assert (await job).text == TEXT


async def test_silence_instead_of_acceptance(client: Client, service: ScriptedService) -> None:
    async def say_nothing(story: Story) -> None: ...

    service.script = say_nothing
    with pytest.raises(NotAccepted, match="may run nevertheless"):
        await client.generate("Tell me")


async def test_a_key_makes_it_safe_to_ask_again(client: Client, service: ScriptedService) -> None:
    async def answer_the_third(story: Story) -> None:
        if len(service.bodies) == 3:
            await story.accept()
            await story.rest()

    service.script = answer_the_third
    result = await client.generate("Tell me", idempotency_key="k")
    assert result.text == TEXT
    assert [body["idempotency_key"] for body in service.bodies] == ["k"] * 3


async def test_leaving_a_keyed_request_does_not_abort_it(
    client: Client, service: ScriptedService
) -> None:
    async def never_end(story: Story) -> None:
        await story.accept()
        await story.tell(2)

    service.script = never_end
    for params in ({"idempotency_key": "k"}, {}):
        stream = client.stream("Tell me", **params)
        await anext(stream)
        await stream.aclose()
    assert len(service.aborted) == 1


async def test_a_reused_key_has_its_class(client: Client, service: ScriptedService) -> None:
    async def refuse(story: Story) -> None:
        await story.error(409, "the key 'k' was used", "idempotency_key_reused")

    service.script = refuse
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await client.generate("Tell me", idempotency_key="k")


async def test_nobody_there_at_all(client: Client) -> None:
    with pytest.raises(NotAccepted, match="does not run"):
        await client.generate("Tell me")
    with pytest.raises(ClientError, match="nobody listens"):
        await client.models()


async def test_a_frontend_that_comes_late_is_found(client: Client, nats_server: NatsServer) -> None:
    asking = asyncio.ensure_future(client.generate("Tell me"))
    await asyncio.sleep(0.3)
    service = await ScriptedService.start(nats_server.url)
    assert (await asking).text == TEXT
    await service.close()


async def test_a_refusal_has_its_class(client: Client, service: ScriptedService) -> None:
    async def refuse(story: Story) -> None:
        await story.error(429, "the queue is full", "queue_full")

    service.script = refuse
    with pytest.raises(QueueFull, match="the queue is full") as caught:
        await client.generate("Tell me")
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
        async for chunk in client.stream("Tell me"):
            texts.append(chunk.text)  # noqa: PERF401 - it ends with an exception

    with pytest.raises(Cancelled):
        await read()
    assert texts == list(PIECES[:2])


async def test_leaving_a_stream_aborts_it(client: Client, service: ScriptedService) -> None:
    async def go_on(story: Story) -> None:
        await story.accept()
        await story.tell(2)

    service.script = go_on
    stream = client.stream("Tell me")
    await anext(stream)
    await stream.aclose()
    assert service.aborted == [RID]


async def test_a_cancelled_call_aborts_its_request(
    client: Client, service: ScriptedService
) -> None:
    async def go_on(story: Story) -> None:
        await story.accept()
        await story.tell(2)

    service.script = go_on
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.generate("Tell me"), 0.3)
    assert service.aborted == [RID]


async def test_abort_by_job_and_by_id(client: Client, service: ScriptedService) -> None:
    job = await client.submit("Tell me")
    assert await client.abort(job) == await client.abort(RID) == 1
    assert service.aborted == [RID, RID]


async def test_a_body_that_no_message_can_hold(client: Client, service: ScriptedService) -> None:
    with pytest.raises(RequestTooLarge, match="one NATS message takes 1048576"):
        await client.generate("x" * (2 << 20))


async def test_one_kind_of_prompt_is_needed(client: Client) -> None:
    with pytest.raises(TypeError, match="one of"):
        await client.submit("a", input_ids=[1])


async def test_no_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ClientError, match="cannot connect to NATS"):
        await Client.connect(f"nats://127.0.0.1:{port}")


async def test_the_sync_client_does_the_same(
    nats_server: NatsServer, service: ScriptedService
) -> None:
    def use() -> None:
        with SyncClient.connect(nats_server.url) as client:
            assert client.generate("Tell me").text == TEXT
            assert [chunk.text for chunk in client.stream("Tell me")] == [*PIECES, ""]
            job = client.submit("Tell me")
            assert next(iter(job)).text == PIECES[0]
            assert job.result().text == TEXT
            assert client.resume(event_id(3)).result().text == "".join(PIECES[3:])
            assert client.models() == [{"id": "tale"}]
            for _ in client.stream("Tell me"):
                break
            assert client.abort(job) == 1

    await asyncio.to_thread(use)


def test_an_error_without_a_body_still_says_something() -> None:
    error = ApiError.from_reply(b"", {"Nats-Service-Error": "no", "Nats-Service-Error-Code": "x"})
    assert (error.message, error.status) == ("no", 500)
