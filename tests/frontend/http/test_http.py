"""HTTP itself: errors in OpenAI's shape, bounds, keys, signs of life, the socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.config import FrontendConfig
from frontend.http.listener import bind
from shared.errors import ConfigError
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.sse import sse_events

CHAT = "/v1/chat/completions"
PIECES = {"incremental_streaming_output": True}
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def assert_error(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]


@pytest.mark.integration
async def test_unknown_paths_and_methods(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        assert_error(await client.get("/nope"), 404, "not_found")
        assert_error(await client.get("/v1/models/"), 404, "model_not_found")
        wrong = await client.get(CHAT)
        assert_error(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        wrong = await client.delete("/v1/models")
        assert_error(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "GET, HEAD"


@pytest.mark.integration
async def test_bodies(stack: Stack) -> None:
    running = await stack.start_frontend(max_body_bytes=1000)

    async def chunked() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 100

    async with running.client() as client:
        assert_error(await client.post(CHAT, content=b"{"), 400, "invalid_json")
        for path in (CHAT, "/v1/responses", "/v1/messages", "/abort_request", "/v1/batches"):
            answer = await client.post(path, content=b'{"model":"\xff"}')
            assert answer.status_code == 400, path
        assert_error(await client.post(CHAT, content=b" " * 1001), 413, "request_too_large")
        assert_error(await client.post(CHAT, content=chunked()), 413, "request_too_large")
        answer = await client.post(
            CHAT,
            content=b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}',
            headers={"content-type": "text/plain"},
        )
        assert answer.status_code == 200
        assert_error(
            await client.post(CHAT, json=BODY, headers={"X-Resume-Grace": "soon"}),
            400,
            "invalid_value",
        )


@pytest.mark.integration
async def test_keys(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("from-file\n\nanother\n")
    running = await stack.start_frontend(api_key=("flag",), api_key_file=tmp_path / "keys")
    async with running.client() as client:
        for path in ("/health", "/health/live", "/health/ready", "/live", "/ready", "/version"):
            assert (await client.get(path)).status_code == 200, path
        for path in ("/v1/models", "/metrics", "/v1/streams/x"):
            refused = await client.get(path)
            assert_error(refused, 401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for value in ("flag", "Bearer", "Basic flag", "Bearer nope", "Bearer flagg"):
            refused = await client.post(CHAT, json=BODY, headers={"Authorization": value})
            assert_error(refused, 401, "invalid_api_key")
        for key in ("flag", "from-file", "another"):
            headers = {"Authorization": f"Bearer {key}"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.integration
async def test_a_silent_stream_is_pinged(stack: Stack) -> None:
    stack.say("a", "b", delay_s=0.7)
    running = await stack.start_frontend(ping_interval_s=0.3)
    async with (
        running.client() as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        text = (await response.aread()).decode()
    before, _, after = text.partition('"content":"a"')
    assert before.count(": ping\n") >= 1
    assert after.count(": ping\n") >= 1
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.integration
async def test_metrics_and_cors(stack: Stack) -> None:
    running = await stack.start_frontend(cors_origins=("https://a.example",))
    async with running.client(headers={"Origin": "https://a.example"}) as client:
        preflight = await client.options(CHAT)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        answer = await client.post(CHAT, json={**BODY, "stream": True})
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = await client.get("/health", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        await client.post(CHAT, json={**BODY, "model": "x"})
        text = (await client.get("/metrics")).text
    route = 'transport="http"'
    assert f'jetflock_frontend_requests_total{{route="{CHAT}",status="200",{route}}} 1.0' in text
    assert f'jetflock_frontend_requests_total{{route="{CHAT}",status="404",{route}}} 1.0' in text
    assert 'jetflock_frontend_generation_tokens_total{model_name="tiny"} 3.0' in text
    assert 'jetflock_frontend_time_to_first_token_seconds_count{model_name="tiny"} 1.0' in text
    assert "jetflock_frontend_inter_token_latency_seconds_count" in text
    assert "jetflock_frontend_requests_in_flight 0.0" in text


@pytest.mark.integration
async def test_accepted_sockets_do_not_wait_for_more(stack: Stack) -> None:
    stack.say("a", never_finish=True)
    running = await stack.start_frontend()
    async with (
        running.client() as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        await anext(sse_events(response))
        for connection in server_connections(running):
            server_socket = connection.transport.get_extra_info("socket")
            assert server_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def server_connections(running: RunningFrontend) -> list[Any]:
    connections = list(running.frontend.transports.server.server_state.connections)
    assert connections
    return connections


def test_a_taken_port_is_one_sentence() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*choose another --port"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="check --host"):
        bind("not.a.host.invalid", 0)


def test_a_key_file_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(ConfigError, match="no API key"):
        FrontendConfig(api_key_file=tmp_path / "keys").api_keys()
    with pytest.raises(ConfigError, match="cannot read"):
        FrontendConfig(api_key_file=tmp_path / "none").api_keys()


@pytest.mark.integration
async def test_generate(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = (await client.post("/generate", json={"text": "x"})).json()
        assert (answer["text"], answer["output_ids"]) == ("Hello, world!", [65, 66, 67])
        assert answer["meta_info"]["finish_reason"] == {"type": "stop"}
        async with client.stream(
            "POST", "/generate", json={"input_ids": [1, 2], "stream": True} | PIECES
        ) as response:
            events = [event async for event in sse_events(response)]
        for body in ({"text": ["x"]}, {"input_ids": [[1, 2]]}):
            (listed,) = (response := await client.post("/generate", json=body)).json()
            assert (listed["text"], listed["index"]) == ("Hello, world!", 0)
            rid = response.headers["x-request-id"]
            again = await client.get(f"/v1/streams/{rid}?stream=false")
            assert again.json() == response.json()
    pieces = [event.json for event in events[:-1]]
    assert "".join(piece["text"] for piece in pieces) == "Hello, world!"
    assert "index" not in pieces[0]
    assert [i for piece in pieces for i in piece["output_ids"]] == [65, 66, 67]
    assert [piece["meta_info"]["finish_reason"] for piece in pieces[:-1]] == [None] * (
        len(pieces) - 1
    )
    assert pieces[-1]["meta_info"]["finish_reason"] == {"type": "stop"}


@pytest.mark.integration
async def test_a_slow_reader_holds_up_nobody(stack: Stack) -> None:
    """Backpressure stays with the connection that does not read."""
    stack.answer(lambda request: _flood())
    running = await stack.start_frontend()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.frontend.process.port)
    body = b'{"model":"tiny","prompt":"x","stream":true}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    await reader.readexactly(12)
    async with running.client() as client:
        stack.say("quick")
        answer = await client.post(CHAT, json=BODY)
        assert answer.json()["choices"][0]["message"]["content"] == "quick"
    writer.close()


def _flood() -> Any:
    from tests.frontend.fake_backend import Script

    return Script(["x" * 60_000] * 200, delay_s=0.001)


async def test_nothing_of_the_admin_plane_is_on_the_public_port(stack: Stack) -> None:
    frontend = await stack.start_frontend()
    orders = "pause_generation continue_generation flush_cache drain_worker workers stats sleep"
    async with frontend.client() as client:
        for path in (*orders.split(), "update_weights_from_disk", "get_server_info"):
            assert (await client.post(f"/{path}", json={})).status_code == 404
            assert (await client.get(f"/{path}")).status_code == 404


@pytest.mark.parametrize(
    "body", [b"[" + b"[]," * 300_000 + b"[]]", b"[" + b"1," * 1_100_000 + b"1]"]
)
@pytest.mark.integration
async def test_bodies_that_take_long_to_decode_are_refused(stack: Stack, body: bytes) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        assert_error(await client.post(CHAT, content=body), 413, "request_too_large")
