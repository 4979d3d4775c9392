"""Responses: created on one frontend, read, streamed and ended on any other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from shared.errors import BrokerError, BrokerUnavailable
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import GrammarKind
from tests.eventually import Looks, eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.response_events import check_events, check_response, events_of, folded
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

URL = "/v1/responses"
BODY: dict[str, Any] = {"model": "tiny", "input": "Hi"}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)


@dataclass
class Two:
    """Two frontends, and OpenAI's client on each."""

    first: RunningFrontend
    second: RunningFrontend
    here: AsyncOpenAI
    there: AsyncOpenAI
    http: httpx.AsyncClient  # to the second


@pytest.fixture
async def two(stack: Stack) -> AsyncIterator[Two]:
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with sdk(first) as here, sdk(second) as there, second.client() as http:
        yield Two(first, second, here, there, http)


def sdk(frontend: RunningFrontend, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key=key, max_retries=0, timeout=20)


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    async with client.stream("POST", URL, json={**BODY, "stream": True, **fields}) as response:
        assert response.status_code == 200
        return await events_of(response)


async def read_on(client: httpx.AsyncClient, response_id: str, number: int) -> list[dict[str, Any]]:
    query = f"stream=true&starting_after={number}"
    async with client.stream("GET", f"{URL}/{response_id}?{query}") as response:
        assert response.status_code == 200
        return await events_of(response)


async def finished(client: AsyncOpenAI, response_id: str) -> Any:
    async for _ in Looks():
        response = await client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            break
    return response


async def test_a_response_is_read_at_another_frontend(two: Two, stack: Stack) -> None:
    made = await two.here.responses.create(
        model="tiny",
        input="Hi",
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=40,
    )
    assert made.output_text == "Hello, world!"
    assert made.status == "completed"
    assert made.metadata == {"a": "b"}
    assert (made.temperature, made.top_p, made.max_output_tokens) == (0.5, 0.9, 40)
    assert made.usage is not None
    (run,) = stack.backend.runs.values()
    assert run.request.sampling.max_tokens == 40
    assert made.usage.input_tokens == run.reply.num_prompt_tokens
    assert made.usage.output_tokens == len("Hello, world!")
    assert (await two.there.responses.retrieve(made.id)).to_dict() == made.to_dict()


async def test_events_have_openais_shape_and_fold_to_the_object(two: Two, stack: Stack) -> None:
    stack.say(*PIECES, delay_s=0.01, twice=True)
    events = await streamed(two.http, include=["message.output_text.logprobs"], top_logprobs=2)
    check_events(events)
    assert [event["type"] for event in events if "delta" not in event] == [
        f"response.{name}"
        for name in (
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        )
    ]
    whole = events[-1]["response"]
    check_response(whole)
    assert folded(events) == whole
    assert whole["output"][0]["content"][0]["text"] == TEXT
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == len(TEXT.encode())
    assert {len(item["top_logprobs"]) for item in logprobs} == {2}
    assert (await two.http.get(f"{URL}/{whole['id']}")).json() == whole


async def test_a_number_means_the_same_at_every_frontend(two: Two, stack: Stack) -> None:
    """Chunks come cut in other places, and whole from a replay; events do not."""
    stack.say(*PIECES, delay_s=0.02, lose=frozenset({1}))
    async with two.first.client() as client:
        events = await streamed(client)
    stack.backend.answer_replays = False  # it is in the store
    response_id = events[0]["response"]["id"]
    for number in range(-1, len(events) + 1):
        if number >= 0:
            assert await read_on(two.http, response_id, number) == events[number + 1 :]
    async with two.http.stream("GET", f"{URL}/{response_id}?stream=true") as response:
        assert await events_of(response) == events


async def test_a_running_stream_goes_on_at_another_frontend(two: Two, stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    async with two.first.client(headers={"X-Resume-Grace": "20"}) as client:
        body = {**BODY, "stream": True}
        async with client.stream("POST", URL, json=body) as response:
            seen = await events_of(response, limit=6)
    rest = asyncio.create_task(read_on(two.http, seen[0]["response"]["id"], 5))
    await eventually(lambda: two.second.frontend.side.streams.router.generations)
    gate.set()
    events = seen + await rest
    check_events(events)
    assert folded(events)["output"][0]["content"][0]["text"] == TEXT


async def test_the_client_streams_and_comes_back(two: Two, stack: Stack) -> None:
    stack.say(*PIECES)
    stream = await two.here.responses.create(model="tiny", input="Hi", stream=True)
    events = [event async for event in stream]
    made = events[0].response  # type: ignore[union-attr]
    again = await two.there.responses.retrieve(made.id, stream=True, starting_after=7)
    assert [event.to_dict() async for event in again] == [event.to_dict() for event in events[8:]]
    async with two.there.responses.stream(response_id=made.id, starting_after=7) as helper:
        assert [event.sequence_number async for event in helper] == [
            event.sequence_number for event in events[8:]
        ]


async def test_the_blocking_client(stack: Stack) -> None:
    running = await stack.start_frontend()

    def work() -> str:
        with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            made = client.responses.create(model="tiny", input="Hi")
            with client.responses.stream(model="tiny", input="Hi") as stream:
                events: Iterable[Any] = stream
                streamed = "".join(e.delta for e in events if e.type.endswith("text.delta"))
                assert stream.get_final_response().output_text == streamed == made.output_text
            items = client.responses.input_items.list(made.id)
            assert [item.role for item in items] == ["user"]  # type: ignore[union-attr]
            client.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(made.id)
        return made.output_text

    assert await asyncio.to_thread(work) == "Hello, world!"


async def test_a_background_response_is_polled_anywhere(two: Two, stack: Stack) -> None:
    stack.backend.hold.clear()
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    made = await two.here.responses.create(model="tiny", input="Hi", background=True)
    assert made.status == "queued"
    assert made.output == []
    assert (await two.there.responses.retrieve(made.id)).status == "queued"
    stack.backend.hold.set()
    gate.set()
    response = await finished(two.there, made.id)
    assert (response.status, response.output_text) == ("completed", TEXT)
    assert response.background
    assert (await two.here.responses.retrieve(made.id)).to_dict() == response.to_dict()


async def test_a_background_stream_runs_on_when_all_its_readers_leave(
    two: Two, stack: Stack
) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    body = {**BODY, "stream": True, "background": True}
    async with two.first.client() as client, client.stream("POST", URL, json=body) as response:
        seen = await events_of(response, limit=6)
    response_id = seen[0]["response"]["id"]
    async with two.http.stream("GET", f"{URL}/{response_id}?stream=true") as response:
        assert await events_of(response, limit=6) == seen
    await time_to_err(0.5)
    assert not stack.backend.cancelled
    gate.set()
    assert (await finished(two.there, response_id)).output_text == TEXT
    check_events(seen[:1] + await read_on(two.http, response_id, 0))


async def test_a_background_response_is_cancelled(two: Two, stack: Stack) -> None:
    stack.say("Hel", "lo", gate=asyncio.Event())
    made = await two.here.responses.create(model="tiny", input="Hi", background=True)
    await eventually(lambda: any(run.text for run in stack.backend.runs.values()))
    cancelled = await two.there.responses.cancel(made.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Hel")
    assert (await two.there.responses.cancel(made.id)).to_dict() == cancelled.to_dict()
    assert (await two.here.responses.retrieve(made.id)).status == "cancelled"
    events = [event async for event in await two.there.responses.retrieve(made.id, stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.to_dict() == cancelled.to_dict()


async def test_only_what_runs_in_the_background_is_cancelled(two: Two) -> None:
    made = await two.here.responses.create(model="tiny", input="Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        await two.here.responses.cancel(made.id)


@pytest.mark.parametrize(
    ("finish", "status", "last"),
    [
        (Finish(FinishReason.LENGTH), "incomplete", "response.incomplete"),
        (Finish(FinishReason.ERROR, message="out of pages"), "failed", "response.failed"),
        (Finish(FinishReason.DEADLINE), "failed", "response.failed"),
    ],
)
async def test_how_responses_end(
    two: Two, stack: Stack, finish: Finish, status: str, last: str
) -> None:
    stack.say("Hel", finish=finish)
    events = await streamed(two.http)
    check_events(events)
    assert events[-1]["type"] == last
    whole = events[-1]["response"]
    check_response(whole)
    assert folded(events) == whole
    assert whole["status"] == status
    assert (await two.there.responses.retrieve(whole["id"])).to_dict() == whole
    if status == "incomplete":
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert whole["output"][0]["status"] == "incomplete"
    else:
        assert whole["error"]["code"] == "server_error"
        with pytest.raises(openai.APIStatusError):
            await two.here.responses.create(model="tiny", input="Hi")


async def test_a_conversation_goes_on(two: Two, stack: Stack) -> None:
    first = await two.here.responses.create(model="tiny", input="Hi", instructions="Old.")
    second = await two.there.responses.create(
        model="tiny", input="More", previous_response_id=first.id, instructions="New."
    )
    await two.here.responses.delete(first.id)  # the second has all of it
    counted = await two.there.responses.input_tokens.count(
        model="tiny", input="Last", previous_response_id=second.id
    )
    third = await two.here.responses.create(
        model="tiny",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Last"}]}],
        previous_response_id=second.id,
    )
    assert third.previous_response_id == second.id
    listed = two.there.responses.input_items.list(third.id, order="asc")
    items: list[Any] = [item async for item in listed]
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "Hi"),
        ("assistant", "Hello, world!"),
        ("user", "More"),
        ("assistant", "Hello, world!"),
        ("user", "Last"),
    ]
    lengths = [run.reply.num_prompt_tokens for run in stack.backend.runs.values()]
    assert counted.input_tokens == lengths[2]
    turn = "<user\nHi><assistant\nHello, world!>"  # one special token for < and for >, and a \n
    assert lengths[2] - lengths[0] == len(
        turn + "\n\n" + "<user\nMore><assistant\nHello, world!>" + "\n\n" + "Last"
    ) - len("Hi" + "<system\nOld.>\n")


async def test_pages_of_input_items(two: Two) -> None:
    made = await two.here.responses.create(
        model="tiny", input=[{"role": "user", "content": str(i)} for i in range(5)]
    )
    items: list[Any] = [
        item async for item in two.there.responses.input_items.list(made.id, limit=2)
    ]
    texts = [item.content[0].text for item in items]
    assert texts == ["4", "3", "2", "1", "0"]
    page = await two.there.responses.input_items.list(made.id, limit=2)
    assert page.has_more
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_1"):
        answer = await two.http.get(f"{URL}/{made.id}/input_items?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == query.split("=")[0]


async def test_a_response_that_is_not_kept(two: Two, stack: Stack) -> None:
    made = await two.here.responses.create(model="tiny", input="Hi", store=False)
    assert made.output_text == "Hello, world!"
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError) as caught:
        await two.here.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found"
    info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
    assert info["state"]["messages"] == 0


async def test_a_response_deleted_while_it_runs_does_not_come_back(two: Two, stack: Stack) -> None:
    stack.say("Hel", "lo", gate=asyncio.Event())
    made = await two.here.responses.create(model="tiny", input="Hi", background=True)
    await eventually(lambda: any(run.text for run in stack.backend.runs.values()))
    deleted = await two.http.delete(f"{URL}/{made.id}")
    assert deleted.json() == {"id": made.id, "object": "response", "deleted": True}
    (run,) = stack.backend.runs.values()
    await eventually(lambda: run.finish is not None)
    await stack.backend._keep(run)  # a detokenizer that is late
    info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
    assert info["state"]["messages"] == 0
    assert (await two.http.get(f"{URL}/{made.id}")).status_code == 404


async def test_a_response_that_was_queued_after_all_keeps_its_record(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue stores the request, and its answers are lost."""
    monkeypatch.setattr("frontend.inference.submitter._PATIENCE_S", 0.3)
    stack.say("Hel", never_finish=True)
    running = await stack.start_frontend()
    js = running.frontend.side.streams.cluster.js
    publish, requests = js.publish, f"{stack.cluster.subjects.prefix}.req."

    async def unheard(subject: str, *args: Any, **options: Any) -> Any:
        if not subject.startswith(requests):
            return await publish(subject, *args, **options)
        with contextlib.suppress(BrokerError):  # it is stored already
            await publish(subject, *args, **options)
        raise BrokerUnavailable("the answer was lost")

    monkeypatch.setattr(js, "publish", unheard)
    async with running.client() as client:
        refused = await client.post(URL, json=BODY)
        assert refused.status_code == 503
        await eventually(lambda: bool(stack.backend.runs))
        (rid,) = stack.backend.runs
        await eventually(lambda: rid in stack.backend.cancelled)
        kept = await client.get(f"{URL}/resp_{rid}")
        assert kept.status_code == 200


async def test_a_refused_response_leaves_no_record(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        for _ in range(8):
            made = await client.post(URL, json={**BODY, "background": True})
            assert made.status_code == 200
        refused = await client.post(URL, json=BODY)
        assert refused.status_code == 429
    info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
    assert info["state"]["num_subjects"] == 8


async def test_a_response_belongs_to_its_key(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("mine", "yours"))
    async with sdk(running, "mine") as mine, sdk(running, "yours") as yours:
        made = await mine.responses.create(model="tiny", input="Hi", background=True)
        for attempt in (
            yours.responses.retrieve(made.id),
            yours.responses.retrieve(made.id, stream=True),
            yours.responses.cancel(made.id),
            yours.responses.delete(made.id),
            yours.responses.input_items.list(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        with pytest.raises(openai.NotFoundError):
            await yours.responses.create(model="tiny", input="Hi", previous_response_id=made.id)
        assert (await finished(mine, made.id)).status == "completed"


async def test_an_idempotency_key_makes_one_background_response(two: Two, stack: Stack) -> None:
    made = [
        await client.responses.create(
            model="tiny", input="Hi", background=True, extra_headers={"Idempotency-Key": "k"}
        )
        for client in (two.here, two.there, two.here)
    ]
    assert len({response.id for response in made}) == 1
    assert (await finished(two.there, made[0].id)).output_text == "Hello, world!"
    assert len(stack.backend.runs) == 1


async def test_a_schema_reaches_the_worker(two: Two, stack: Stack) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = await two.here.responses.create(
        model="tiny",
        input="Hi",
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
    )
    (run,) = stack.backend.runs.values()
    assert run.request.sampling.grammar is not None
    assert run.request.sampling.grammar.kind is GrammarKind.JSON_SCHEMA
    assert made.text is not None
    assert made.text.format is not None
    assert made.text.format.to_dict()["schema"] == schema


async def test_caps(stack: Stack) -> None:
    running = await stack.start_frontend(max_response_bytes=900)
    long = "x" * 400
    async with sdk(running) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="tiny", input=long)
        assert caught.value.status_code == 413
        made = await client.responses.create(model="tiny", input=long, store=False)
        assert made.output_text == "Hello, world!"
        info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
        await stack.cluster.js.api(
            "STREAM.UPDATE.jf_RESPONSES", {**info["config"], "max_bytes": 2000}
        )
        await client.responses.create(model="tiny", input="Hi")
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="tiny", input="Hi")
        assert caught.value.status_code == 503
        assert "full" in caught.value.message


async def test_what_cannot_be_continued(two: Two, stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("Hel", "lo", gate=gate)
    made = await two.here.responses.create(model="tiny", input="Hi", background=True)
    with pytest.raises(openai.BadRequestError, match="still runs") as caught:
        await two.here.responses.create(model="tiny", input="x", previous_response_id=made.id)
    assert caught.value.param == "previous_response_id"
    gate.set()
    await finished(two.here, made.id)
    stack.say("Hel", finish=Finish(FinishReason.ERROR))
    made = await two.here.responses.create(model="tiny", input="Hi", background=True)
    await finished(two.here, made.id)
    with pytest.raises(openai.BadRequestError, match="no answer"):
        await two.here.responses.create(model="tiny", input="x", previous_response_id=made.id)


async def test_a_refused_request_leaves_no_record(stack: Stack) -> None:
    running = await stack.start_frontend(queue_max_interactive=1)
    stack.backend.hold.clear()
    async with sdk(running) as client:
        await client.responses.create(model="tiny", input="Hi", background=True)
        await eventually(
            lambda: (
                running.frontend.side.streams.queue_watch.num_queued(stack.card.pool, "interactive")
                > 0
            )
        )
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="tiny", input="Hi", background=True)
        info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
        queued = await stack.cluster.js.api("STREAM.INFO.jf_REQUESTS")
    assert info["state"]["messages"] == queued["state"]["messages"]
    stack.backend.hold.set()


async def test_bad_queries(two: Two) -> None:
    made = await two.here.responses.create(model="tiny", input="Hi")
    for query, param in (
        ("stream=x", "stream"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=1", "starting_after"),
    ):
        answer = await two.http.get(f"{URL}/{made.id}?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    for path in ("resp_x", "x", made.id[:-1], "resp_" + "0" * 32):
        assert (await two.http.get(f"{URL}/{path}")).status_code == 404
