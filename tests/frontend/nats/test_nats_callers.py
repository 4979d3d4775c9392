"""Whom the NATS server knows by name is a tenant: what it has is nobody else's."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from deploy.nats.permissions import ADMIN
from frontend.config import FrontendConfig
from frontend.tenants.auth import ApiKey, ApiKeys
from frontend.tenants.key_file import read_key_file
from shared.broker.named_subjects import is_plain_subject
from shared.errors import AuthenticationFailed, ConfigError
from shared.nats_client.connection import round_trip
from tests.frontend.batch_calls import jsonl, line
from tests.frontend.conftest import Stack, open_stack
from tests.frontend.nats.test_nats_service import BODY
from tests.nats_users import ROLES, NatsUsers

CLIENTS = ("alice", "bob")


@pytest.fixture(params=["users", "accounts"])
def users(request: pytest.FixtureRequest, tmp_path: Path) -> NatsUsers:
    return NatsUsers(tmp_path / "nats", CLIENTS, accounts=request.param == "accounts")


@pytest.fixture
async def stack(users: NatsUsers) -> AsyncIterator[Stack]:
    server = users.server()
    server.start()
    try:
        alice = await users.connect(server.url, "alice")
        async with alice, open_stack(server, alice, **users.options(ADMIN)) as stack:
            stack.options |= users.frontend_options()
            yield stack
    finally:
        server.kill()


async def ask(
    nc: Client, name: str, endpoint: str, body: Any = None, headers: dict[str, str] | None = None
) -> Msg:
    data = json.dumps({} if body is None else body).encode()
    return await nc.request(f"jetflock.{name}.{endpoint}", data, 10, headers=headers)


def code(message: Msg) -> str:
    return (message.headers or {}).get("Nats-Service-Error-Code", "200")


async def upload(nc: Client, name: str) -> tuple[str, str]:
    """Returns the id of a file, and the subject of its parts."""
    begun = await ask(nc, name, "files.upload", {"purpose": "batch", "filename": "in.jsonl"})
    subject = json.loads(begun.data)["subject"]
    assert subject.startswith(f"jetflock.{name}.files.part.")
    content = jsonl(line(0, model="tiny"))
    await nc.request(subject, content, 10, headers={"Jetflock-Offset": "0"})
    end = await nc.request(subject, b"", 10, headers={"Jetflock-Offset": str(len(content))})
    return json.loads(end.data)["id"], subject


@pytest.mark.integration
async def test_what_a_client_has_is_its_own(users: NatsUsers, stack: Stack) -> None:
    running = await stack.start_frontend()
    alice = stack.caller
    response = json.loads(
        (await ask(alice, "alice", "responses", {"model": "tiny", "input": "Hi"})).data
    )["id"]
    whole = await ask(alice, "alice", "chat.completions", BODY)
    rid = (whole.headers or {})["Jetflock-Request-Id"]
    file, part = await upload(alice, "alice")
    batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = json.loads((await ask(alice, "alice", "batches", batch)).data)["id"]
    items = {"items": [{"role": "user", "content": "Hi"}]}
    made = json.loads((await ask(alice, "alice", "conversations", items)).data)["id"]
    of_alice: list[tuple[str, Any]] = [
        ("conversations.get", {"id": made}),
        ("conversations.items", {"id": made}),
        ("conversations.items.add", {"id": made, **items}),
        ("responses", {"model": "tiny", "input": "Hi", "conversation": made}),
        ("responses.get", {"id": response}),
        ("responses.input_items", {"id": response}),
        ("resume", {"rid": rid, "stream": False}),
        ("files.get", {"id": file}),
        ("files.download", {"id": file}),
        ("batches.get", {"id": batch_id}),
    ]
    for endpoint, body in of_alice:
        assert code(await ask(alice, "alice", endpoint, body)) == "200", endpoint
    async with await users.connect(stack.server.url, "bob") as bob:
        for endpoint, body in [
            *of_alice,
            ("batches.cancel", {"id": batch_id}),
            ("files.delete", {"id": file}),
            ("responses.delete", {"id": response}),
            ("conversations.change", {"id": made, "metadata": {}}),
            ("conversations.delete", {"id": made}),
            ("erase", {"rid": made.removeprefix("conv_")}),
            ("erase", {"rid": rid}),
            ("abort", {"rid": rid}),
        ]:
            assert code(await ask(bob, "bob", endpoint, body)) == "404", endpoint
        stolen = part.replace("jetflock.alice.", "jetflock.bob.")
        answer = await bob.request(stolen, b"", 10, headers={"Jetflock-Offset": "0"})
        assert code(answer) == "404"
        assert json.loads((await ask(bob, "bob", "files.list")).data)["data"] == []
    async with running.client() as client:
        for path in (f"/v1/responses/{response}", f"/v1/files/{file}", f"/v1/batches/{batch_id}"):
            assert (await client.get(path)).status_code == 404, path
    for endpoint, body in of_alice:
        assert code(await ask(alice, "alice", endpoint, body)) == "200", endpoint


@pytest.mark.integration
async def test_an_unknown_key_is_refused_and_a_known_one_says_for_whom(
    users: NatsUsers, stack: Stack
) -> None:
    running = await stack.start_frontend(api_key=("carol's",))
    alice = stack.caller
    carols = {"Authorization": "Bearer carol's"}
    answer = await ask(alice, "alice", "models", headers={"Authorization": "Bearer x"})
    assert code(answer) == "401"
    answer = await ask(alice, "alice", "responses", {"model": "tiny", "input": "Hi"}, carols)
    response = {"id": json.loads(answer.data)["id"]}
    assert code(await ask(alice, "alice", "responses.get", response)) == "404"
    assert code(await ask(alice, "alice", "responses.get", response, carols)) == "200"
    async with running.client(headers=carols) as client:
        assert (await client.get(f"/v1/responses/{response['id']}")).status_code == 200


@pytest.mark.integration
async def test_a_client_has_the_limits_of_its_tenant(
    users: NatsUsers, stack: Stack, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("tenants:\n- id: a\n  requests_per_minute: 1\n  keys: [{nats_user: alice}]\n")
    await stack.start_frontend(api_keys_file=keys)
    assert code(await ask(stack.caller, "alice", "chat.completions", BODY)) == "200"
    assert code(await ask(stack.caller, "alice", "chat.completions", BODY)) == "429"
    async with await users.connect(stack.server.url, "bob") as bob:
        for _ in range(3):
            assert code(await ask(bob, "bob", "chat.completions", BODY)) == "200"


def test_tenants_of_nats_users(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants:\n- id: a\n  keys: [{key: k}, {nats_user: alice}]\n")
    keys = ApiKeys(read_key_file(file))
    assert keys.tenant_of("", "alice").id == keys.tenant_of("Bearer k").id == "a"
    assert keys.tenant_of("Bearer k", "bob").id == "a"
    assert keys.tenant_of("", "bob").id == "nats:bob"
    assert keys.tenant_with("nats:bob") == keys.tenant_of("", "bob")
    assert not keys.tenant_of("", "bob").is_operator
    for authorization, user in (("", ""), ("Bearer alice", ""), ("Bearer x", "alice")):
        with pytest.raises(AuthenticationFailed):
            keys.tenant_of(authorization, user)
    assert ApiKeys([]).tenant_of("Bearer x", "bob").id == "nats:bob"
    assert ApiKeys([ApiKey.without_limits("k")]).tenant_of("Bearer k", "bob").id[:4] == "key:"


def test_callers_need_a_user_that_answers_them() -> None:
    with pytest.raises(ConfigError, match="nats_callers is 'users'"):
        FrontendConfig(nats_user="frontend", nats_callers="users").service_login()
    assert FrontendConfig(nats_user="u").service_login().user == "u"


MARK = "eVil"
HOSTILE = (
    f"{MARK}.*",
    f"{MARK}.>",
    f"$JS.API.STREAM.PURGE.{MARK}",
    f"jf.out.{MARK}",
    f"{MARK}\r\nPUB jf.out.{MARK} 2\r\nhi\r\n",
    f"{MARK} 1\tx",
    f"../{MARK}\x00",
    f"{MARK}é\u2028",
    MARK * 200,
)
FIELDS: dict[str, dict[str, Any]] = {
    "chat.completions": {
        **BODY,
        **dict.fromkeys(
            ("model", "user", "idempotency_key", "cache_salt", "session_id", "rid", "lora"), MARK
        ),
    },
    "chat.completions.batch": {"model": MARK, "messages": [BODY["messages"]], "rid": MARK},
    "completions": {"model": "tiny", "prompt": MARK, "stop": MARK, "suffix": MARK, "user": MARK},
    "generate": {"text": MARK, "rid": MARK, "session_params": {"id": MARK}, "model": MARK},
    "infill": {"input_prefix": MARK, "input_suffix": MARK, "model": MARK, "prompt": MARK},
    "embed": {"model": MARK, "input": MARK},
    "classify": {"model": MARK, "input": MARK},
    "pooling": {"model": MARK, "input": MARK},
    "score": {"model": MARK, "queries": MARK, "documents": [MARK]},
    "rerank": {"model": MARK, "query": MARK, "documents": [MARK]},
    "audio.transcriptions": {"model": MARK, "file": MARK, "language": MARK},
    "audio.translations": {"model": MARK, "file": MARK, "prompt": MARK},
    "responses": {
        "model": "tiny",
        "input": MARK,
        "previous_response_id": MARK,
        "user": MARK,
        "conversation": f"conv_{MARK}",
    },
    "responses.get": {"id": f"resp_{MARK}"},
    "responses.delete": {"id": MARK},
    "responses.cancel": {"id": MARK},
    "responses.input_items": {"id": MARK, "after": MARK, "order": MARK},
    "conversations": {"items": [{"role": "user", "content": MARK}], "metadata": {MARK: MARK}},
    "conversations.get": {"id": f"conv_{MARK}"},
    "conversations.change": {"id": MARK, "metadata": {MARK: MARK}},
    "conversations.delete": {"id": f"conv_{MARK}"},
    "conversations.items": {"id": MARK, "after": MARK, "order": MARK},
    "conversations.items.add": {"id": MARK, "items": [{"role": MARK, "content": MARK}]},
    "conversations.items.get": {"id": MARK, "item_id": MARK},
    "conversations.items.delete": {"id": f"conv_{MARK}", "item_id": MARK},
    "batches": {"input_file_id": MARK, "endpoint": MARK, "completion_window": MARK},
    "batches.get": {"id": f"batch_{MARK}"},
    "batches.cancel": {"id": MARK},
    "batches.list": {"after": MARK},
    "files.upload": {"purpose": "batch", "filename": MARK},
    "files.get": {"id": f"file-{MARK}"},
    "files.delete": {"id": MARK},
    "files.download": {"id": MARK},
    "files.list": {"purpose": MARK, "after": MARK},
    "tokens": {"stream_id": MARK},
    "streams.list": {"model": MARK, "after": MARK},
    "fork": {"stream_id": MARK, "event_id": f"{MARK}.0.0.0", "append": MARK},
    "resume": {"event_id": f"{MARK}.0.0.0"},
    "abort": {"rid": MARK},
    "erase": {"rid": MARK},
    "models": {"model": MARK},
    "tokenize": {"model": MARK, "prompt": MARK},
    "detokenize": {"model": MARK, "tokens": [MARK]},
    "loads": {"model": MARK},
    "usage": {"model": MARK, "by": MARK},
    "tokenizer_info": {"model": MARK},
}
# What the bodies of HTTP alone may name things by.
BODY_FIELDS = ("model", "name", "prompt", "input", "query", "messages", "conversation", "rid",
               "session_id", "lora", "text", "suffix", "system", "keep_alive")  # fmt: skip
ENDLESS = ("/cluster/events",)
HEADERS = ("X-Session-Id", "Idempotency-Key", "X-Request-Id", "traceparent", "tracestate",
           "X-Job-Class", "Last-Event-ID", "X-Request-Timeout")  # fmt: skip


# Where all are of one account, somebody hears more.
@pytest.mark.parametrize(
    ("users", "num_texts"),
    [
        ("users", 2),
        pytest.param("users", len(HOSTILE), marks=pytest.mark.nightly),
        pytest.param("accounts", len(HOSTILE), marks=pytest.mark.nightly),
    ],
    indirect=["users"],
)
@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_no_text_of_a_client_gets_into_a_subject(stack: Stack, num_texts: int) -> None:
    """Somebody hears everything, and sees nothing but what the roles are there to send. So many of
    the texts come to each place, and others to the next one.
    """
    texts = itertools.cycle(HOSTILE)
    in_headers = itertools.cycle(text for text in HOSTILE if text.isprintable() and text.isascii())
    running = await stack.start_frontend()
    heard: set[str] = set()

    async def hear(message: Msg) -> None:
        heard.add(message.subject)

    await stack.cluster.nc.subscribe(">", cb=hear, pending_msgs_limit=-1)
    assert await round_trip(stack.cluster.nc)
    of_files = {"files.upload", "files.download"}
    assert {*running.frontend.side.nats_handlers, *of_files} == FIELDS.keys()
    async with running.client() as client:
        for endpoint, fields in FIELDS.items():
            for text in itertools.islice(texts, num_texts):
                hostile = json.loads(json.dumps(fields).replace(MARK, json.dumps(text)[1:-1]))
                for body in (hostile, *one_by_one(fields, hostile)):
                    await ask(stack.caller, "alice", endpoint, body)
        for path in running.frontend.side.app.paths:
            for text in itertools.islice(texts, 0 if path in ENDLESS else num_texts):
                named = re.sub(r"{\w+}", quote(text, safe=""), path)
                for method in ("GET", "DELETE") if named != path else ("GET",):
                    await client.request(method, named)
                await client.post(named, json=dict.fromkeys(BODY_FIELDS, text))
                await client.post(named, json={"model": "tiny", "prompt": text, "input": text})
        for name in HEADERS:
            for text in itertools.islice(in_headers, num_texts):
                body = {**BODY, "max_tokens": 1}
                await client.post("/v1/chat/completions", json=body, headers={name: text})
    assert await round_trip(stack.cluster.nc)
    assert len(heard) > 10
    of_alice = {subject for subject in heard if subject.startswith("jetflock.alice.")}
    for subject in heard - of_alice:
        assert MARK not in subject
        assert is_plain_subject(subject)
        assert any(is_match(pattern, subject) for pattern in known()), subject


def one_by_one(fields: dict[str, Any], hostile: dict[str, Any]) -> list[dict[str, Any]]:
    """With one hostile field each: of many, only the first that is read would be told."""
    fine = {
        name: "tiny" if name == "model" else value
        for name, value in fields.items()
        if name == "model" or MARK not in json.dumps(value)
    }
    return [{**fine, name: value} for name, value in hostile.items()]


def known() -> list[str]:
    """Where roles publish, clients are answered, and the test itself and its fake are answered."""
    patterns = {
        pattern for name, rights in ROLES.items() if name != ADMIN for pattern in rights.publish
    }
    return [*patterns, "_INBOX_alice.>", "_R_.>", "_INBOX_jf_frontend.>", "$JS.EVENT.ADVISORY.>",
            "$JS.API.CONSUMER.>", "$JS.API.STREAM.>", "$JS.ACK.jf_REQUESTS.>"]  # fmt: skip


def is_match(pattern: str, subject: str) -> bool:
    text = re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+")
    return re.fullmatch(text, subject) is not None
