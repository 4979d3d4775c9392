"""Kept streams that are over: their list, whose they are, and runs of them on another model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.config import FrontendConfig
from jetflock.commands.replay import PROGRAM as REPLAY
from jetflock.commands.shadow import ShadowConfig, follow
from jetflock.replay import series
from jetflock.replay.journal import Journal
from jetflock.running.running_service import ServiceError
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.codec import decode_ownership, encode
from shared.protocol.finish import Finish, FinishReason, RunFacts
from shared.protocol.log_records import End
from shared.protocol.model_cards import AdapterCard
from shared.subjects import is_sampled, new_rid
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import Stack
from tests.frontend.surfaces.test_forks import CHAT, finished, given_to, ids_of, last_run, saying
from tests.frontend.tiny_model import VOCAB_SIZE, make_bundle, make_card, register
from tests.time_to_err import time_to_err

KEYS = """
tenants:
- {id: alice, keys: [{key: alice}]}
- {id: bob, keys: [{key: bob}]}
- {id: ops, keys: [{key: ops}], reads_kept: true}
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def listed(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        answer = await client.get("/v1/streams", params={**query, **after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["data"]
        after = {"after": page["next"]}
        if not page["has_more"]:
            return found


async def num_ended(stack: Stack) -> int:
    """Before any worker had them."""
    subjects = stack.cluster.subjects
    scan = stack.cluster.js.direct_scan(subjects.tokens_stream, f"{subjects.prefix}.own.*.*")
    records = [decode_ownership(message.data) async for message in scan]
    return sum(isinstance(record, End) for record in records)


async def made_room(stack: Stack) -> bool:
    return await num_ended(stack) == 1


async def has_queued(stack: Stack, num: int) -> bool:
    return await stack.num_queued() == num


async def tells_waiting(client: httpx.AsyncClient, num: int) -> bool:
    """By a look that is not too old."""
    queues = (await client.get("/v1/loads")).json()["queues"]
    return sum(each["num_waiting"] for each in queues) >= num


@pytest.mark.integration
async def test_each_tenant_sees_its_own_and_who_may_all(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all", api_keys_file=keys)
    began = int(time.time())
    async with (
        running.client(headers=bearer("alice")) as alice,
        running.client(headers=bearer("bob")) as bob,
        running.client(headers=bearer("ops")) as ops,
    ):
        pair = await finished(alice, n=2)
        theirs = await finished(bob)
        response = await alice.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
        assert response.status_code == 200
        first, second = await listed(alice)
        assert (first["id"], second["id"]) == (pair, pair)
        assert sorted((first["choice"], second["choice"])) == [0, 1]
        assert (first["model"], first["finish_reason"]) == ("tiny", "stop")
        assert first["num_output_tokens"] == 5
        assert [each["id"] for each in await listed(bob)] == [theirs]
        for limit in (1, 1000):
            found = await listed(ops, limit=limit)
            assert sorted(each["id"] for each in found) == sorted([pair, pair, theirs])
        assert len(await listed(ops, since=began - 5)) == 3
        assert await listed(ops, since=began + 3600) == []
        assert await listed(ops, model="other") == []
        # Whoever goes on behind a page sees what has ended since.
        at_end = (await ops.get("/v1/streams", params={"since": began + 3600})).json()
        late = await finished(bob)
        assert [each["id"] for each in await listed(ops, after=at_end["next"])] == [late]

        # Who may read it may run it again, and pays for that run.
        told = (await ops.get(f"/v1/streams/{theirs}/tokens")).json()
        assert told["token_ids"] == ids_of("Hello")
        rerun = {"at": 0, "sampling": {"seed": "source", "logprobs": 2}}
        answer = await ops.post(f"/v1/streams/{theirs}/fork", json=rerun)
        assert answer.status_code == 200, answer.text
        run = last_run(stack)
        assert run.request.reply.owner not in ("", stack.backend.runs[theirs].reply.owner)
        assert run.request.cache_salt == stack.backend.runs[theirs].request.cache_salt
        again = answer.headers["x-request-id"]
        told = (await ops.get(f"/v1/streams/{again}/tokens", params={"top": 1})).json()
        assert len(told["logprobs"]) == len(told["top_logprobs"]) == 5
        assert {len(each) for each in told["top_logprobs"]} == {1}
        assert again not in {each["id"] for each in await listed(ops)}, "it would be compared again"
        assert (await alice.get(f"/v1/streams/{theirs}/tokens")).status_code == 404
        answer = await alice.post(f"/v1/streams/{theirs}/fork", json=rerun)
        assert answer.status_code == 404
        await bob.delete(f"/v1/streams/{theirs}")
        assert theirs not in {each["id"] for each in await listed(ops)}
        for name, value in (("limit", "0"), ("since", "x"), ("after", "x"), ("after", "jf.*")):
            answer = await alice.get("/v1/streams", params={name: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert (await ops.get(f"/v1/streams/{late}/tokens?top=21")).status_code == 400


@pytest.mark.integration
async def test_a_stream_goes_on_with_another_model_of_its_tokenizer(stack: Stack) -> None:
    bundle = make_bundle()
    fine = AdapterCard("fine", "r2", 8, 18)
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await cards.put(stack.card.pool, encode(make_card(bundle, adapters=(fine,))))
    words = TokenizerBundle.of_numbers(VOCAB_SIZE)
    await register(stack.cluster, words, make_card(words, "foreign"))
    plain = make_bundle(chat_template=None)  # the same tokens, and another hash
    await register(stack.cluster, plain, make_card(plain, "small", vocab_size=90))
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all")
    async with running.client() as client:
        rid = await finished(client, logprobs=True, max_tokens=400, cache_salt="s")
        source = last_run(stack).request
        path = f"/v1/streams/{rid}/fork"
        answer = await client.post(path, json={"at": 2, "model": "fine"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "fine"
        request = last_run(stack).request
        assert (request.adapter, request.prompt_ids) == ("r2", source.prompt_ids)
        assert request.cache_salt == source.cache_salt
        back = await client.post(
            f"/v1/streams/{answer.headers['x-request-id']}/fork",
            json={"at": 1, "model": "tiny", "sampling": {"seed": "source"}},
        )
        assert back.status_code == 200, back.text
        assert (last_run(stack).request.adapter, given_to(last_run(stack))) == ("", ids_of("H"))
        for body, status, param, why in (
            ({"at": 0, "model": "none"}, 404, "model", "none"),
            ({"at": 0, "model": "small"}, 409, "model", "has 90 tokens"),
            ({"at": 0, "model": "foreign"}, 409, "model", "tokenizer is not that of 'tiny'"),
            ({"at": 0, "sampling": {"logprobs": 21}}, 400, "sampling.logprobs", "21"),
            ({"at": 1, "sampling": {"logprobs": 3}}, 409, "sampling.logprobs", "0 alternatives"),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == status, (body, answer.text)
            assert answer.json()["error"]["param"] == param, (body, answer.text)
            assert why in answer.json()["error"]["message"]
        rerun: dict[str, Any] = {"at": 0, "sampling": {"logprobs": 3, "seed": "source"}}
        answer = await client.post(path, json=rerun)
        entries = answer.json()["choices"][0]["logprobs"]["content"]
        assert {len(each["top_logprobs"]) for each in entries} == {3}
        over_nats = await stack.caller.request("jetflock.streams.list", b'{"limit": 1}', timeout=10)
        assert json.loads(over_nats.data)["data"][0]["id"] == rid


@pytest.mark.integration
async def test_a_fork_runs_again_from_where_it_began(stack: Stack) -> None:
    ended = Finish(FinishReason.STOP, run=RunFacts(num_given=2))
    stack.answer(lambda _: saying("llo", finish=ended))
    running = await stack.start_frontend(keep_requests="all")
    async with running.client() as client:
        rid = await finished(client)
        answer = await client.post(f"/v1/streams/{rid}/fork", json={"at": 2})
        fork = answer.headers["x-request-id"]
    await asyncio.to_thread(REPLAY.run, [fork, "--url", running.url])
    assert given_to(last_run(stack)) == ids_of("ll")


@pytest.mark.integration
async def test_a_shadow_waits_for_others_and_leaves_out_what_is_old(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = AdapterCard("fine", "r2", 8, 18)
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await cards.put(stack.card.pool, encode(make_card(make_bundle(), adapters=(fine,))))
    words = TokenizerBundle.of_numbers(VOCAB_SIZE)
    await register(stack.cluster, words, make_card(words, "foreign"))
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all")
    shadow = ShadowConfig(url=running.url, of="tiny", model="fine", max_waiting=2, max_requests=2)
    async with running.client() as client:
        with Journal(tmp_path / "journal.jsonl", {}) as journal:
            journal.add_since(int(time.time()) - 5)
            for _ in range(2):
                await finished(client)
            stack.backend.hold.clear()
            waiting = [asyncio.create_task(finished(client)) for _ in range(5)]
            await eventually_async(lambda: tells_waiting(client, 4))
            following = asyncio.create_task(follow(shadow, 1.0, journal))
            await time_to_err(1.5)
            assert journal.done == set()
            assert await stack.num_queued() == 5
            stack.backend.hold.set()
            await asyncio.wait_for(following, 20)
            assert len(journal.done) == 2
            assert journal.report.num_failed == 0
            await asyncio.gather(*waiting)
        with Journal(tmp_path / "ended.jsonl", {}) as journal:
            journal.add_since(int(time.time()) - 60)
            stack.backend.hold.clear()
            one = dataclasses.replace(shadow, concurrency=1)
            waiting = [asyncio.create_task(finished(client))]
            await eventually_async(lambda: has_queued(stack, 1))
            following = asyncio.create_task(follow(one, 1.0, journal))
            await eventually_async(lambda: has_queued(stack, 2))  # its own
            assert await num_ended(stack) == 0
            waiting += [asyncio.create_task(finished(client)) for _ in range(4)]
            await eventually_async(lambda: made_room(stack))
            stack.backend.hold.set()
            await asyncio.gather(*waiting)
            await asyncio.wait_for(following, 20)
            assert (len(journal.done), journal.report.num_failed) == (2, 0)
        with Journal(tmp_path / "foreign.jsonl", {}) as journal:
            journal.add_since(int(time.time()) - 60)
            foreign = dataclasses.replace(shadow, model="foreign", max_requests=0)
            monkeypatch.setattr(series, "_HOPELESS", 3)
            await asyncio.wait_for(follow(foreign, 1.0, journal), 20)
            assert journal.report.num_compared == 0
            assert 3 <= journal.report.num_failed < 3 + foreign.concurrency
            [why] = journal.report.facts()["failures"]
            assert "tokenizer is not that of 'tiny'" in why
        with Journal(tmp_path / "late.jsonl", {}) as journal:
            with pytest.raises(ServiceError, match="'nobody'"):
                await follow(dataclasses.replace(shadow, model="nobody"), 1.0, journal)
            journal.add_since(int(time.time()) - 60)
            late = dataclasses.replace(shadow, max_lag_s=0.001, max_requests=0)
            following = asyncio.create_task(follow(late, 1.0, journal))
            await eventually(lambda: journal.report.num_skipped == 12)
            following.cancel()
            assert journal.done == set()


@pytest.mark.integration
async def test_a_share_of_all_is_kept_and_those_that_are_asked_for(stack: Stack) -> None:
    stack.answer(lambda _: saying("Hello"))
    running = await stack.start_frontend(keep_requests="all", keep_share=0.5)
    async with running.client() as client:
        ids = [await finished(client) for _ in range(12)]
        asked = await finished(client, store=True)
        assert [each["id"] for each in await listed(client)] == [
            *(rid for rid in ids if is_sampled(rid, 0.5)),
            asked,
        ]
        answer = await client.post(CHAT, json={"model": "tiny", "messages": "x"})
        assert answer.status_code == 400


def test_a_greater_share_holds_a_smaller_one() -> None:
    ids = [new_rid() for _ in range(2000)]
    chosen = {share: {rid for rid in ids if is_sampled(rid, share)} for share in (0, 0.1, 0.3, 1)}
    assert chosen[0] == set()
    assert chosen[0.1] < chosen[0.3] < chosen[1] == set(ids)
    assert 120 < len(chosen[0.1]) < 280


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [({"keep_share": 1.5, "keep_requests": "all"}, "1.5"), ({"keep_share": 0.5}, "'asked'")],
)
def test_a_share_is_checked(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        FrontendConfig(**fields).check_keeping()
