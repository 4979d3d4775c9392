"""Forks: new streams that begin with the first tokens of a stream, whoever has it now."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest

from jetflock import Client
from jetflock.commands.replay import PROGRAM as REPLAY
from jetflock.errors import BadRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Run, Script
from tests.frontend.sse import sse_events, text_of
from tests.frontend.tiny_model import make_tokenizer

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 5}


def ids_of(text: str) -> list[int]:
    """One a byte."""
    ids: list[int] = make_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def saying(text: str, **options: Any) -> Script:
    """Each byte is a token, and a piece has the text that its token completes."""
    pieces, shown = [], ""
    for end in range(1, len(text.encode()) + 1):
        whole = text.encode()[:end].decode(errors="ignore")
        pieces.append(whole[len(shown) :])
        shown = whole
    return Script(pieces, piece_ids=[[each] for each in ids_of(text)], **options)


def last_run(stack: Stack) -> Run:
    return list(stack.backend.runs.values())[-1]


def given_to(run: Run) -> list[int]:
    assert run.request.given is not None
    return unpack_token_ids(run.request.given.token_ids)


async def finished(client: httpx.AsyncClient, **fields: Any) -> str:
    """Its id."""
    answer = await client.post(CHAT, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def test_a_running_stream_is_forked_at_another_frontend(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.answer(lambda _: Script(["One, ", "two"], piece_ids=[ids_of("One, "), [9]], gate=gate))
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        source = {**BODY, "logprobs": True, "stream": True, "cache_salt": "s"}
        async with client.stream("POST", CHAT, json=source) as response:
            rid = response.headers["x-request-id"]
            events = sse_events(response)
            seen = [await anext(events), await anext(events)]
            run = stack.backend.runs[rid]
            stack.answer(lambda request: saying(f"{request.reply.choice_idx}!"))
            place = {"at": 3, "n": 2, "sampling": {"temperature": 0.25, "seed": 9, "top_k": -1}}
            forks = {}
            for stream in (False, True):
                answer = await other.post(
                    f"/v1/streams/{rid}/fork", json={**place, "stream": stream}
                )
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-fork-at"] == "3"
                assert answer.headers["x-fork-text-offset"] == "3"
                forks[stream] = answer
            gate.set()
            assert text_of([*seen, *[event async for event in events]]) == "One, two"
    choices = forks[False].json()["choices"]
    assert [each["message"]["content"] for each in choices] == ["One0!", "One1!"]
    assert [len(each["logprobs"]["content"]) for each in choices] == [5, 5]
    streamed = [json.loads(line[6:]) for line in forks[True].text.splitlines() if "{" in line]
    assert (
        "".join(
            each["delta"].get("content", "")
            for event in streamed
            for each in event["choices"]
            if each["index"] == 1
        )
        == "One1!"
    )
    for fork in list(stack.backend.runs.values())[1:]:
        request = fork.request
        assert given_to(fork) == run.token_ids[:3]
        assert request.given is not None
        assert request.given.logprobs == run.logprobs_from(0)[: len(request.given.logprobs)]
        assert request.prompt_ids == run.request.prompt_ids
        assert request.cache_salt == run.request.cache_salt
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_k) == (0.25, 0)
        assert sampling.seed == 9 + request.reply.choice_idx
        assert sampling.max_tokens == run.request.sampling.max_tokens


async def test_what_is_over_is_forked_where_it_is_kept(stack: Stack) -> None:
    stack.answer(lambda _: saying("Grüße, 🙂!", delay_s=0.0))
    running = await stack.start_frontend(keep_requests="asked", api_key=("alice", "bob"))
    async with (
        running.client(headers={"authorization": "Bearer alice"}) as alice,
        running.client(headers={"authorization": "Bearer bob"}) as bob,
    ):
        unkept, kept = await finished(alice), await finished(alice, store=True)
        answer = await alice.post(f"/v1/streams/{unkept}/fork", json={"at": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "request_not_kept")
        path = f"/v1/streams/{kept}/fork"
        for each in (unkept, kept):
            answer = await bob.post(f"/v1/streams/{each}/fork", json={"at": 1})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "stream_not_found")
        async with alice.stream("GET", f"/v1/streams/{kept}") as response:
            ids = [event.event_id async for event in sse_events(response)]
        stack.answer(lambda _: saying("?"))
        text = "Grüße, 🙂!"
        for place, begins in (
            ({"at": 0}, ""),
            ({"at": 4}, "Grü"),
            ({"text_offset": 2}, "Gr"),
            ({"text_offset": 7}, text[:7]),  # the bytes of the smile have no text until the last
            ({"text_offset": 99}, text[:8]),  # the last token is its end
            ({"event_id": ids[-1]}, text[:8]),
            ({"text_offset": 3, "append": "ß 🙂"}, "Grüß 🙂"),
        ):
            answer = await alice.post(path, json=place)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == f"{begins}?"
            if begins:
                assert given_to(last_run(stack)) == ids_of(begins)
            else:
                assert last_run(stack).request.given is None
        # What is kept is no response, and goes with the rest of the request.
        assert (await alice.get(f"/v1/responses/resp_{kept}")).status_code == 404
        forks_of_fork = await alice.post(path, json={"at": 2, "store": True})
        again = f"/v1/streams/{forks_of_fork.headers['x-request-id']}/fork"
        assert (await alice.post(again, json={"text_offset": 2})).status_code == 200
        assert given_to(last_run(stack)) == ids_of("Gr")
        assert (await bob.delete(f"/v1/streams/{kept}")).status_code == 404
        assert (await alice.delete(f"/v1/streams/{kept}")).status_code == 200
        assert (await alice.post(path, json={"at": 1})).status_code == 404


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keep_requests": "none"}, "no requests kept"),
        ({"max_response_bytes": 10}, "10"),
    ],
)
async def test_what_cannot_be_kept_is_served_and_says_so(
    stack: Stack, options: dict[str, Any], why: str
) -> None:
    running = await stack.start_frontend(**options)
    async with running.client() as client:
        answer = await client.post(CHAT, json={**BODY, "store": True})
        assert answer.status_code == 200, answer.text
        assert why in answer.headers["x-request-not-kept"]
        quiet = await client.post(CHAT, json=BODY)
        assert "x-request-not-kept" not in quiet.headers


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "at"),
    ({"at": 1, "text_offset": 1}, 400, "text_offset"),
    ({"at": -1}, 400, "at"),
    ({"at": 6}, 400, "at"),
    ({"at": "1"}, 400, "at"),
    ({"at": 1, "choice": 1}, 400, "choice"),
    ({"at": 1, "n": 17}, 400, "n"),
    ({"at": 1, "append": ""}, 400, "append"),
    ({"at": 2, "append": "lo;"}, 400, "append"),
    ({"at": 1, "sampling": {"stop": "x"}}, 400, "sampling.stop"),
    ({"at": 1, "sampling": {"temperature": 3}}, 400, "sampling.temperature"),
    ({"at": 2, "sampling": {"max_tokens": 2}}, 400, "sampling.max_tokens"),
    ({"at": 1, "sampling": {"max_tokens": 9999}}, 400, "sampling.max_tokens"),
    ({"event_id": "x"}, 400, "event_id"),
    ({"event_id": "{rid}.1.1.00000000"}, 409, "event_id"),
    ({"event_id": "{rid}.99.9.00000000"}, 409, "event_id"),
    ({"event_id": "0123456789abcdef0123456789abcdef.1.1.00000000"}, 400, "event_id"),
]


async def test_what_cannot_be_forked_is_refused_by_name(stack: Stack) -> None:
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all")
    async with running.client() as client:
        rid = await finished(client, stop=[";"])
        num_runs = len(stack.backend.runs)
        for body, status, param in BAD:
            sent = json.loads(json.dumps(body).replace("{rid}", rid))
            answer = await client.post(f"/v1/streams/{rid}/fork", json=sent)
            assert answer.status_code == status, (body, answer.text)
            assert answer.json()["error"]["param"] == param, (body, answer.text)
        body = {**BODY, "logprobs": True}
        told = (await client.post(CHAT, json=body)).headers["x-request-id"]
        answer = await client.post(f"/v1/streams/{told}/fork", json={"at": 1, "append": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_forkable")
        response = {"model": "tiny", "input": "Hi"}
        answer = await client.post("/v1/responses", json=response)
        path = f"/v1/streams/{answer.headers['x-request-id']}/fork"
        answer = await client.post(path, json={"at": 1})
        assert answer.status_code == 409, answer.text
        answer = await client.post("/v1/streams/none/fork", json={"at": 1})
        assert answer.status_code == 404
    assert len(stack.backend.runs) == num_runs + 2


async def test_over_nats_a_key_makes_one_fork(stack: Stack) -> None:
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all")
    async with running.client() as client:
        rid = await finished(client)
    fork = json.dumps({"stream_id": rid, "at": 4, "idempotency_key": "k"}).encode()
    answers = [await stack.caller.request("jetflock.fork", fork, timeout=10) for _ in range(2)]
    one, other = (json.loads(answer.data) for answer in answers)
    assert one["choices"][0]["message"]["content"] == "HellHello"
    assert one["id"] == other["id"]
    assert answers[0].headers is not None
    assert answers[0].headers["x-fork-at"] == "4"
    assert len(stack.backend.runs) == 2


async def test_the_python_client_forks_a_job(stack: Stack) -> None:
    stack.answer(lambda _: saying("Hello"))
    await stack.start_frontend(keep_requests="all")
    async with Client(stack.server.url) as client:
        job = client.generate_async("Hi")
        first = await anext(aiter(job))
        await job
        stack.answer(lambda _: saying("!"))
        fork = job.fork(first.event_id, sampling={"seed": 1})
        assert (await fork).text == f"{first.text_diff}!"
        at_its_end = job.fork()  # of what has stopped, before its last token
        assert (await at_its_end).text == "Hell!"
        fork = job.fork(text_offset=3, append="p", n=2)
        assert [choice.text for choice in (await fork).choices] == ["Help!", "Help!"]
        with pytest.raises(BadRequest, match="can be forked at up to 4 tokens"):
            await job.fork(at=5)


async def test_while_older_roles_live_nothing_is_forked(older_stack: Stack) -> None:
    older_stack.answer(lambda _: saying("Hello"))
    running = await older_stack.start_frontend(keep_requests="all")
    async with running.client() as client:
        rid = await finished(client)
        answer = await client.post(f"/v1/streams/{rid}/fork", json={"at": 1})
        assert answer.status_code == 503
        assert "feature level 3" in answer.json()["error"]["message"]


async def test_a_replay_says_where_the_tokens_part(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all", api_key=("alice", "bob"))
    async with (
        running.client(headers={"authorization": "Bearer alice"}) as alice,
        running.client(headers={"authorization": "Bearer bob"}) as bob,
    ):
        rid = await finished(alice, logprobs=True)
        first = last_run(stack)
        told = (await alice.get(f"/v1/streams/{rid}/tokens")).json()
        assert told["token_ids"] == ids_of("Hello")
        assert (told["text"], told["finish_reason"], told["choice"]) == ("Hello", "stop", 0)
        assert len(told["logprobs"]) == 5
        path = f"/v1/streams/{rid}/tokens"
        assert (await bob.get(path)).status_code == 404
        for choice in ("1", "x", "-1"):
            answer = await alice.get(path, params={"choice": choice})
            assert answer.status_code == 400, choice
            assert answer.json()["error"]["param"] == "choice"
        # Behind the resume window what is kept still tells.
        results = stack.cluster.subjects.results_stream
        await stack.cluster.js.purge(results, stack.cluster.subjects.done(rid))
        assert (await alice.get(path)).json() == told
        assert (await bob.get(path)).status_code == 404

    async def replay(*flags: str) -> int:
        argv = [rid, "--url", running.url, "--api-key", "alice", *flags]
        try:
            await asyncio.to_thread(REPLAY.run, argv)
        except SystemExit as exc:
            return int(exc.code or 0)
        return 0

    assert await replay() == 0
    assert "5 tokens, all equal" in capsys.readouterr().out
    again = last_run(stack).request
    assert again.sampling == msgspec.structs.replace(first.request.sampling, logprobs=5)
    assert again.reply.job_class == "batch"
    stack.answer(lambda _: saying("Help"))
    assert await replay() == 1
    printed = capsys.readouterr().out
    assert "the runs part at token 3: 3 are equal" in printed
    assert f"token id {ids_of('l')[0]}, logprob " in printed
    assert f"token id {ids_of('p')[0]}, logprob " in printed
    assert await replay("--to", "3", "--json") == 0
    printed = capsys.readouterr().out
    facts = json.loads(printed[printed.index("{\n") : printed.index("\n}\n") + 2])
    assert (facts["equal"], facts["parts_at"], facts["num_compared"]) == (True, None, 3)
    assert last_run(stack).request.sampling.max_tokens == 3
    assert await replay("--to", "0") == 2
