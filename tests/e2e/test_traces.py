"""One request, one trace: from the client's header to the detokenizer, over every hand-over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from tests.e2e.role_stack import MODEL_NAME
from tests.e2e.streams import Stream, completion_body
from tests.e2e.traced_roles import TracedRoles, client_of, traced_roles
from tests.nats_server import NatsServer
from tests.span_recorder import parent_id, span_id, trace_id

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(120)]

TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CLIENT_SPAN}-01"
SECRET = "Once upon a secret"
WORK = ["claim", "decode", "detokenize", "prefill", "queue wait"]


@pytest.fixture
async def roles(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[TracedRoles]:
    async with traced_roles(nats_server, tmp_path) as running:
        yield running


def whole(**fields: object) -> dict[str, object]:
    return {**completion_body(SECRET, max_tokens=5, stream=False), **fields}


async def test_a_request_is_one_trace_through_all_roles(roles: TracedRoles) -> None:
    frontend = await roles.start_frontend()
    await roles.start_detok()
    worker = await roles.start_worker()
    recorder = roles.recorder
    headers = {"traceparent": SAMPLED, "tracestate": "congo=t61"}
    body = whole(n=2, temperature=0.5, top_p=0.9, stop=["secret stop"], user="secret user")
    async with client_of(frontend) as client:
        answer = (await client.post("/v1/completions", json=body, headers=headers)).json()
    await recorder.wait_for(lambda: len(recorder.named("detokenize")) == 2)

    server = recorder.one(f"text_completion {MODEL_NAME}")
    assert (server.kind, parent_id(server)) == (SpanKind.SERVER, CLIENT_SPAN)
    sent = [span for span in recorder.spans if span.name.startswith("send jf.req.")]
    assert recorder.names == sorted([server.name, "prepare", *(s.name for s in sent), *WORK * 2])
    assert {trace_id(span) for span in recorder.spans} == {TRACE}
    assert {parent_id(span) for span in recorder.spans if span is not server} == {span_id(server)}
    assert all(span.context.trace_state.get("congo") == "t61" for span in recorder.spans)
    assert [span.kind for span in sent] == [SpanKind.PRODUCER] * 2

    told = told_by(server)
    assert told.pop("gen_ai.request.seed", 0) >= 0
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "jetflock",
        "gen_ai.request.model": MODEL_NAME,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": MODEL_NAME,
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        "network.protocol.name": "http",
        "server.address": "127.0.0.1",
        "server.port": frontend.process.port,
        "jetflock.frontend": told["jetflock.frontend"],
        "jetflock.job_class": "interactive",
        "jetflock.request_id": answer["id"].removeprefix("cmpl-"),
    }
    for name in WORK:
        choices = sorted(told_by(span)["jetflock.choice"] for span in recorder.named(name))
        assert choices == [0, 1]
    wait = told_by(recorder.named("queue wait")[0])
    assert (wait["messaging.system"], wait["messaging.operation.type"]) == ("nats", "receive")
    decode = recorder.named("decode")[0]
    assert told_by(decode)["jetflock.worker"] == worker._worker_id
    assert told_by(decode)["jetflock.output_tokens"] == 5
    assert told_by(recorder.named("prefill")[0])["jetflock.engine_queue_s"] >= 0
    assert [event.name for event in decode.events] == ["first token"]
    texts = [choice["text"] for choice in answer["choices"]]
    recorder.assert_tells_nothing_of(SECRET, "secret", *(text for text in texts if text.strip()))

    await check_headers(roles, frontend.process.port)


def told_by(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def check_headers(roles: TracedRoles, port: int) -> None:
    """The same roles: what clients may say of a trace."""
    recorder, url = roles.recorder, f"http://127.0.0.1:{port}"
    num_spans = len(recorder.spans)
    stream = Stream()
    await stream.post(url, completion_body(max_tokens=3), traceparent=SAMPLED[:-1] + "0")
    assert stream.is_done
    await stream.post(url, completion_body(max_tokens=3), traceparent="00-nonsense")
    # That nobody records comes before this one, which has a trace of its own.
    await recorder.wait_for(lambda: len(recorder.spans) == num_spans + 3 + len(WORK))
    server = recorder.named(f"text_completion {MODEL_NAME}")[-1]
    assert server.parent is None
    assert trace_id(server) != TRACE
    assert told_by(server)["gen_ai.request.stream"] is True
    assert told_by(server)["gen_ai.response.time_to_first_chunk"] > 0

    async with asyncio.timeout(20):
        message = await roles.nats.request(
            "jetflock.completions",
            json.dumps(whole()).encode(),
            timeout=20,
            headers={"traceparent": SAMPLED},
        )
    assert "choices" in json.loads(message.data)
    server = recorder.named(f"text_completion {MODEL_NAME}")[-1]
    assert (trace_id(server), parent_id(server)) == (TRACE, CLIENT_SPAN)
    assert told_by(server)["network.protocol.name"] == "nats"
    assert "http.response.status_code" not in told_by(server)


async def test_a_released_request_goes_on_in_its_trace_and_a_resumed_stream_links_to_it(
    roles: TracedRoles,
) -> None:
    frontend, other = await roles.start_frontend(), await roles.start_frontend()
    await roles.start_detok()
    workers = [await roles.start_worker(), await roles.start_worker()]
    recorder, stream = roles.recorder, Stream()
    url = f"http://127.0.0.1:{frontend.process.port}"
    reading = asyncio.create_task(
        stream.post(url, completion_body(max_tokens=75), traceparent=SAMPLED)
    )
    await stream.wait_for_tokens(25)
    first, second = sorted(workers, key=lambda worker: not worker._runner.num_held)
    first.shutdown.ask()
    await reading
    assert stream.is_done
    await recorder.wait_for(lambda: "detokenize" in recorder.names)
    await recorder.wait_for(lambda: len(recorder.named("decode")) == 2)
    server = recorder.one(f"text_completion {MODEL_NAME}")
    claims, decodes = recorder.named("claim"), recorder.named("decode")
    assert {trace_id(span) for span in recorder.spans} == {TRACE}
    assert {parent_id(span) for span in [*claims, *decodes]} == {span_id(server)}
    assert [told_by(span)["jetflock.worker"] for span in decodes] == [
        first._worker_id,
        second._worker_id,
    ]
    assert told_by(decodes[0])["jetflock.left"] == "released"
    assert [event.name for event in decodes[0].events] == ["first token", "released"]
    assert told_by(claims[1])["jetflock.previous_worker"] == first._worker_id
    assert told_by(claims[1])["jetflock.hand_over"] == "released"
    resumed = told_by(claims[1])["jetflock.resumed_tokens"]
    assert resumed == told_by(decodes[0])["jetflock.output_tokens"] >= 20
    assert told_by(claims[1])["jetflock.epoch"] > told_by(claims[0])["jetflock.epoch"]
    assert told_by(recorder.one("detokenize"))["jetflock.epochs"] == 2
    assert len(recorder.named("queue wait")) == 2

    await stream.resume(f"http://127.0.0.1:{other.process.port}")
    again = recorder.named(server.name)[-1]
    assert again.parent is None
    assert told_by(again)["jetflock.resumed"] is True
    [link] = again.links
    assert f"{link.context.span_id:016x}" == span_id(server)


async def test_what_is_refused_has_a_span_that_says_why_without_the_clients_words(
    roles: TracedRoles,
) -> None:
    frontend = await roles.start_frontend()
    async with client_of(frontend) as client:
        await client.post("/v1/completions", json={"model": "a secret model", "prompt": SECRET})
        await client.post("/v1/chat/completions", json={"model": MODEL_NAME, "messages": SECRET})
        await client.get("/v1/streams/0123456789abcdef0123456789abcdef")
    recorder = roles.recorder
    unknown, malformed = recorder.one("text_completion"), recorder.one("chat")
    assert told_by(unknown)["error.type"] == "model_not_found"
    assert told_by(malformed)["error.type"] == "invalid_type"
    assert {span.status.status_code for span in (unknown, malformed)} == {StatusCode.UNSET}
    resume = recorder.one("resume")
    assert told_by(resume)["error.type"] == "stream_not_found"
    assert resume.status.status_code is StatusCode.UNSET
    recorder.assert_tells_nothing_of("secret")
