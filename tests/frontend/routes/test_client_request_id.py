"""What a client calls its request is told again and logged; the request's id is another."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from shared.subjects import is_rid
from tests.frontend.conftest import Stack

pytestmark = pytest.mark.integration

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Client-Request-Id"])
@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_told_again_and_is_not_the_id(stack: Stack, name: str, stream: bool) -> None:
    running = await stack.start_frontend()
    with capture_logs() as logs:
        async with running.client(headers={name: "order 66"}) as client:
            answer = await client.post(CHAT, json=BODY | {"stream": stream})
    assert answer.headers["x-client-request-id"] == "order 66"
    rid = answer.headers["x-request-id"]
    assert is_rid(rid)
    assert [run.request.rid for run in stack.backend.runs.values()] == [rid]
    assert [(line["id"], line["client_id"]) for line in logs if "client_id" in line] == [
        (rid, "order 66")
    ]


async def test_errors_have_it_too(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client(headers={"X-Request-Id": "a-1"}) as client:
        for answer in (await client.post(CHAT, json={}), await client.get("/nowhere")):
            assert answer.headers["x-client-request-id"] == "a-1"


@pytest.mark.parametrize("value", [b"", b"x" * 513, b"\xe9"])
async def test_what_no_log_line_should_hold_is_refused(stack: Stack, value: bytes) -> None:
    running = await stack.start_frontend()
    async with running.client(headers=[(b"X-Client-Request-Id", value)]) as client:
        answer = await client.post(CHAT, json=BODY)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-client-request-id"
    assert "x-client-request-id" not in answer.headers


async def test_a_browser_may_read_it_after_its_preflight(stack: Stack) -> None:
    running = await stack.start_frontend(cors_origins=("https://a.example",))
    asking = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-client-request-id",
    }
    async with running.client() as client:
        preflight = await client.options(CHAT, headers=asking)
        stranger = await client.options(CHAT, headers=asking | {"Origin": "https://b.example"})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert "x-client-request-id" in preflight.headers["access-control-expose-headers"]
    assert int(preflight.headers["access-control-max-age"]) > 0
    assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize("field", ["rid", "request_id"])
async def test_a_body_may_name_it_and_it_is_aborted_by_that_name(stack: Stack, field: str) -> None:
    stack.say("a", "b", gate=asyncio.Event())
    running = await stack.start_frontend(api_key=("alpha", "beta"))
    body = BODY | {"stream": True, field: "mine"}
    stranger = {"authorization": "Bearer beta"}
    async with running.client(headers={"authorization": "Bearer alpha"}) as client:
        async with client.stream("POST", CHAT, json=body) as response:
            assert response.headers["x-client-request-id"] == "mine"
            assert is_rid(response.headers["x-request-id"])
            refused = await client.post("/abort_request", json={"rid": "mine"}, headers=stranger)
            assert refused.status_code == 404
            ended = await client.post("/abort_request", json={"rid": "mine"})
            assert ended.json() == {"rid": "mine", "num_aborted": 1}
            assert b"cancel" in await response.aread()
        gone = await client.post("/abort_request", json={"rid": "mine"})
        assert gone.status_code == 404
        for value in (["a", "b"], 7, "", "x" * 513):
            wrong = await client.post(CHAT, json=BODY | {field: value})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, field)
