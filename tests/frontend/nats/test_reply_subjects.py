"""A client with least rights names a subject of somebody else as its reply: nothing happens there.

With the rights of `jetflock nats-users`, on a real server; once with what the frontend itself
refuses, and once with nothing but what the server refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from deploy.nats.permissions import ADMIN
from frontend.tenants.caller_gate import CallerGate
from shared.broker.named_subjects import NamedSubjects, is_plain_subject
from shared.errors import InvalidRequest
from shared.subjects import Subjects
from tests.eventually import Looks
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.nats.test_nats_service import BODY
from tests.frontend.users_stack import open_users_stack, passing_readers, states, stored
from tests.nats_users import ROLES, NatsUsers

CLIENTS = ("alice", "bob")
RID = "0" * 32
PROMPT = {"model": "tiny", "prompt": "Hi"}
ANSWERED = {  # these start something
    "chat.completions": BODY,
    "chat.completions.batch": {"model": "tiny", "messages": [BODY["messages"]]},
    "completions": {**PROMPT, "stream": True},
    "generate": {"text": "Hi"},
    "infill": {"input_prefix": "Hi", "input_suffix": "Ho"},
    "embed": {"model": "tiny", "input": "Hi"},
    "classify": {"model": "tiny", "input": "Hi"},
    "pooling": {"model": "tiny", "input": "Hi"},
    "score": {"model": "tiny", "queries": "a", "documents": ["b"]},
    "rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "audio.transcriptions": {"model": "tiny", "file": "Hi"},
    "audio.translations": {"model": "tiny", "file": "Hi"},
    "responses": {"model": "tiny", "input": "Hi"},
    "batches": {"input_file_id": "file-x", "endpoint": "/v1/completions"},
    "files.upload": {"purpose": "batch", "filename": "a"},
    "conversations": {"items": [{"role": "user", "content": "Hi"}]},
}
HARMLESS = {  # these change nothing, whoever asks
    "responses.get": {"id": f"resp_{RID}"},
    "responses.cancel": {"id": f"resp_{RID}"},
    "responses.delete": {"id": f"resp_{RID}"},
    "responses.input_items": {"id": f"resp_{RID}"},
    "batches.get": {"id": "batch_x"},
    "batches.list": {},
    "batches.cancel": {"id": "batch_x"},
    "files.get": {"id": "file-x"},
    "files.list": {},
    "files.delete": {"id": "file-x"},
    "files.download": {"id": "file-x"},
    "files.part.nobody.x": {},
    "conversations.get": {"id": f"conv_{RID}"},
    "conversations.change": {"id": f"conv_{RID}", "metadata": {}},
    "conversations.delete": {"id": f"conv_{RID}"},
    "conversations.items": {"id": f"conv_{RID}"},
    "conversations.items.add": {"id": f"conv_{RID}", "items": []},
    "conversations.items.get": {"id": f"conv_{RID}", "item_id": "msg_x"},
    "conversations.items.delete": {"id": f"conv_{RID}", "item_id": "msg_x"},
    "fork": {"stream_id": RID, "at": 1},
    "tokens": {"stream_id": RID},
    "streams.list": {},
    "resume": {"rid": RID},
    "abort": {"rid": RID},
    "erase": {"rid": RID},
    "models": {},
    "tokenize": {"model": "tiny", "prompt": '{"filter": ">"}'},
    "detokenize": {"model": "tiny", "tokens": [65]},
    "loads": {},
    "usage": {"by": "day"},
    "tokenizer_info": {},
}
GENERATE = json.dumps({"text": "Hi", "stream": True}).encode()
# One with an answer that the server can read as a purge, one with a stream of them.
TAKEN_AWAY = {"generate": {"text": "Hi", "stream": True}, "models": {}, "detokenize": {}}
# A server takes a message with such a reply from nobody.
RESERVED = ("_R_.", "$JS.ACK.")


def concrete(subject: str) -> set[str]:
    """Of a pattern: with its wildcards, and with tokens in their place."""
    return {subject, subject.replace("*", "x").replace(">", "x"), subject.replace("*", RID)}


def subjects_of_roles() -> set[str]:
    """All that any role may publish to or hears."""
    patterns = {
        pattern
        for name, rights in ROLES.items()
        if name != ADMIN
        for pattern in (*rights.publish, *rights.subscribe)
    }
    return {subject for pattern in patterns for subject in concrete(pattern)}


def others() -> set[str]:
    """Subjects that no role has, and the client has no business with."""
    return {
        "$JS.API.STREAM.DELETE.jf_TOKENS",
        "$JS.API.STREAM.UPDATE.jf_REQUESTS",
        "$JS.API.CONSUMER.DURABLE.CREATE.jf_REQUESTS.x",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.x",
        "_INBOX_alice",
        "_INBOX_alicex.y",
        "_INBOX_alice.>",
        "_INBOX_alice.*",
        "_INBOX_alice..x",
        "_INBOX_alice.é",
        f"_INBOX_alice.{'x' * 300}",
        "_R_.x.y",
        "jetflock.alice.generate",
        "anything",
        ">",
        "*",
    }


@pytest.fixture
async def users(tmp_path: Path) -> NatsUsers:
    return NatsUsers(tmp_path / "nats", CLIENTS)


@pytest.fixture
async def stack(users: NatsUsers) -> AsyncIterator[Stack]:
    async with open_users_stack(users, "alice") as stack:
        yield stack


async def keep_something(users: NatsUsers, stack: Stack) -> str:
    """A response of another client."""
    async with await users.connect(stack.server.url, "bob") as bob:
        body = json.dumps(ANSWERED["responses"]).encode()
        answer = json.loads((await bob.request("jetflock.bob.responses", body, 10)).data)
        assert answer["status"] == "completed"
    await stack.until_queued(0)  # the fake takes it from there when it has answered
    return str(answer["id"])


async def assert_kept(users: NatsUsers, stack: Stack, response_id: str) -> None:
    async with await users.connect(stack.server.url, "bob") as bob:
        body = json.dumps({"id": response_id}).encode()
        answer = await bob.request("jetflock.bob.responses.get", body, 10)
        assert json.loads(answer.data)["id"] == response_id


async def attack(
    alice: Client, bodies: dict[str, Any], replies: Iterable[str], frontend_id: str
) -> int:
    """Every endpoint with every reply. Returns how many requests were sent."""
    num = 0
    for reply in sorted(reply for reply in replies if not reply.startswith(RESERVED)):
        for endpoint, body in bodies.items():
            subject = f"jetflock.alice.{endpoint}".replace(".nobody.", f".{frontend_id}.")
            # nats-py looks at subjects, a hostile client does not.
            data = json.dumps(body).encode()
            head = f"PUB {subject} {reply} {len(data)}\r\n".encode()
            await raw_publish(alice, head + data + b"\r\n")
            num += 1
        await alice.flush()
    return num


async def raw_publish(nc: Client, command: bytes) -> None:
    await nc._send_command(command)
    if nc._pending_data_size > 32 * 1024:
        await nc._flush_pending(force_flush=True)


async def all_counted(running: RunningFrontend, num: int) -> None:
    """Every request was handled."""
    async for _ in Looks(60, lambda: f"{num_handled(running)} of {num}"):
        if num_handled(running) >= num:
            return


def num_handled(running: RunningFrontend) -> int:
    return sum(
        int(sample.value)
        for metric in running.metrics.requests.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["transport"] == "nats"
    )


@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_whatever_a_client_names_nothing_changes_and_nobody_hears_a_byte(
    users: NatsUsers, stack: Stack
) -> None:
    running = await stack.start_frontend()
    kept = await keep_something(users, stack)
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async with await users.connect(stack.server.url, "bob") as bob:
        await bob.subscribe("_INBOX_bob.>", cb=hear)
        await bob.request("jetflock.bob.models", b"", 10)  # from here on it is heard
        heard.clear()
        service_nc = running.frontend.process.service_nc
        assert service_nc is not None
        before, num_before = await states(stack), num_handled(running)
        readers = await passing_readers(stack)
        replies = {*subjects_of_roles(), *others(), "_INBOX_bob.x.y", "_INBOX_bob.>"}
        assert len(replies) > 100
        num_sent = service_nc.stats["out_msgs"]
        num = await attack(stack.caller, {**HARMLESS, **ANSWERED}, replies, running.frontend_id)
        await all_counted(running, num_before + num)
        assert service_nc.stats["out_msgs"] == num_sent, "nothing was sent to anybody"
        assert await states(stack) == before
        assert await passing_readers(stack) <= readers
        assert heard == []
    await assert_kept(users, stack, kept)


@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_the_server_alone_keeps_answers_from_all_but_inboxes_of_clients(
    users: NatsUsers, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontend answers wherever it is told to."""
    monkeypatch.setattr(CallerGate, "check", lambda self, subject, reply: subject.split(".")[1])
    running = await stack.start_frontend()
    kept = await keep_something(users, stack)
    replies = {reply for reply in subjects_of_roles() | others() if is_plain_subject(reply)} - {
        "jetflock.alice.generate"
    }
    before, num_before = await states(stack), num_handled(running)
    readers = await passing_readers(stack)
    num = await attack(stack.caller, HARMLESS, replies, running.frontend_id)
    await all_counted(running, num_before + num)
    assert await states(stack) == before
    assert await passing_readers(stack) <= readers
    await assert_kept(users, stack, kept)


@pytest.mark.integration
async def test_the_rights_of_an_eraser_would_do_harm(
    users: NatsUsers, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the two walls keep out: without them the answer to a client empties a stream."""
    running = await stack.start_frontend()
    await keep_something(users, stack)
    before = await states(stack)
    answer_by(running.frontend.side.streams.cluster.js.erasing_nc, running, monkeypatch)
    await stack.caller.publish(
        "jetflock.alice.generate", GENERATE, reply="$JS.API.STREAM.PURGE.jf_RESPONSES"
    )
    assert before["jf_RESPONSES"]["messages"] > 0
    async for _ in Looks(30):
        if not (await states(stack))["jf_RESPONSES"]["messages"]:
            break


@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_what_a_frontend_does_all_its_work_with_takes_nothing_away(
    users: NatsUsers, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that leave by its main connection may store something, where clients say."""
    running = await stack.start_frontend()
    kept = await keep_something(users, stack)
    answer_by(running.frontend.side.streams.cluster.nc, running, monkeypatch)
    replies = {reply for reply in subjects_of_roles() if is_plain_subject(reply)}
    replies |= {
        f"$JS.API.STREAM.{verb}.{stream}"
        for stream in await states(stack)
        for verb in ("PURGE", "MSG.DELETE", "DELETE", "UPDATE")
    }
    before, num_before = await stored(stack), num_handled(running)
    assert before
    num = await attack(stack.caller, TAKEN_AWAY, replies, running.frontend_id)
    await all_counted(running, num_before + num)
    assert before <= await stored(stack)
    service = running.frontend.process.service_nc
    assert service is not None
    answer_by(service, running, monkeypatch)
    await assert_kept(users, stack, kept)


@pytest.mark.integration
async def test_every_endpoint_is_attacked(stack: Stack) -> None:
    running = await stack.start_frontend()
    of_files = {"files.upload", "files.download", "files.part.nobody.x"}
    assert {*running.frontend.side.nats_handlers, *of_files} == {**HARMLESS, **ANSWERED}.keys()


def answer_by(nc: Client, running: RunningFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever callers say, and by another connection than it should."""
    monkeypatch.setattr(CallerGate, "check", lambda self, subject, reply: subject.split(".")[1])
    monkeypatch.setattr(running.frontend.transports.service, "_nc", nc)


@pytest.mark.parametrize(
    ("callers", "subject", "reply", "caller"),
    [
        ("anyone", "jetflock.generate", "_INBOX.abc.1", ""),
        ("anyone", "jetflock.generate", "my.own.replies", ""),
        ("anyone", "jetflock.generate", "jfx.y", ""),
        ("users", "jetflock.alice.generate", "_INBOX_alice.abc.1", "alice"),
        ("accounts", "jetflock.alice.generate", "_R_.abc.1", "alice"),
    ],
)
def test_a_reply_that_is_taken(callers: Any, subject: str, reply: str, caller: str) -> None:
    assert CallerGate("jetflock", Subjects(), callers).check(subject, reply) == caller


# Where the server has no users, everybody may hear everything but what is ours.
NOT_OURS = {"_INBOX.x", "_INBOX_alice", "_INBOX_alicex.y", "_R_.x.y", "anything"}


@pytest.mark.parametrize(
    ("callers", "fine"), [("anyone", NOT_OURS), ("users", set()), ("accounts", {"_R_.x.y"})]
)
def test_a_reply_that_is_refused(callers: Any, fine: set[str]) -> None:
    gate = CallerGate("jetflock", Subjects(), callers)
    for reply in (subjects_of_roles() | others()) - fine:
        with pytest.raises(InvalidRequest):
            gate.check("jetflock.alice.generate", reply)


def test_what_roles_may_tell_each_other_to_publish_to() -> None:
    told = NamedSubjects(Subjects())
    own = {f"_INBOX_jf_{role}.x" for role in ROLES}
    ack = "$JS.ACK.jf_REQUESTS.pool_batch-2.3.42.77.1700000000000000000.5"
    assert all(map(told.is_role_inbox, own))
    assert told.is_text_subject("jf.out.frontend-1")
    assert told.is_ack_subject(ack)
    for subject in {*subjects_of_roles(), *others(), "jf.out.a.b", f"{ack}.x.y", f"{ack} "}:
        assert not told.is_role_inbox(subject) or subject in own | {
            f"{inbox[:-1]}{RID}" for inbox in own
        }
        assert not told.is_text_subject(subject) or re.fullmatch(r"jf\.out\.\w+", subject)
        assert not told.is_ack_subject(subject)
