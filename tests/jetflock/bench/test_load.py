"""Requests against a scripted server: streams cut anywhere, failures, known times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.endpoint import Endpoint, EndpointName
from jetflock.bench.load_runner import LoadRunner, StageRun
from jetflock.bench.load_stage import LoadStage
from jetflock.bench.prompt import Prompt
from jetflock.bench.request_record import RequestRecord
from jetflock.bench.request_sender import RequestSender
from jetflock.bench.target import Target
from shared.errors import ConfigError
from tests.jetflock.bench.scripted_openai import (
    DONE,
    END,
    HANG_UP,
    ScriptedOpenai,
    Step,
    event,
    http_chunk,
    scripted_openai,
    stream,
    stream_head,
    usage_event,
    whole,
)

PROMPT = Prompt("Tell me", 4)
WHOLE = (event(""), event("a"), event("b"), event("", "stop"), usage_event(7, 3, 2), DONE)


def make_sender(
    server: ScriptedOpenai,
    pool: ConnectionPool,
    target: Target,
    name: EndpointName = "chat",
    timeout_s: float = 20.0,
    max_retries: int = 0,
) -> RequestSender:
    return RequestSender(pool, target, Endpoint(name, "scripted"), timeout_s, max_retries)


async def record_of(
    steps: Sequence[Step] | Callable[[int], Sequence[Step]], num: int = 1, **kwargs: Any
) -> tuple[list[RequestRecord], ScriptedOpenai]:
    """Of `num` requests, one after the other."""

    def script(path: str, body: object) -> Sequence[Step]:
        return steps(len(server.requests)) if callable(steps) else steps

    async with scripted_openai(script) as server:
        target = Target.from_url(server.url)
        async with ConnectionPool(target) as pool:
            sender = make_sender(server, pool, target, **kwargs)
            records = [await sender.send(PROMPT, time.perf_counter()) for _ in range(num)]
        return records, server


async def test_a_stream_is_counted() -> None:
    [record], server = await record_of(stream(*WHOLE))
    assert record.error == ""
    assert len(record.arrivals) == 2  # neither the opening nor the end brings text
    usage = (record.num_prompt_tokens, record.num_output_tokens, record.num_cached_tokens)
    assert usage == (7, 3, 2)
    [(path, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Tell me"}]
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (4, True, True)


async def test_bytes_may_be_cut_anywhere() -> None:
    data = b"".join(step for step in stream(*WHOLE) if isinstance(step, bytes))
    for size in (1, 2, 3, 7, 64):
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        steps = [step for piece in pieces for step in (piece, 0.0)]
        [record], _ = await record_of(steps)
        assert record.error == ""
        assert (len(record.arrivals), record.num_output_tokens) == (2, 3)


async def test_lines_may_end_in_crlf_and_events_may_share_a_chunk() -> None:
    together = b"".join(WHOLE).replace(b"\n", b"\r\n") + b": ping\r\n\r\n"
    [record], _ = await record_of([stream_head(), http_chunk(together), END])
    assert (record.error, len(record.arrivals), record.num_output_tokens) == ("", 2, 3)


async def test_an_answer_without_usage_is_counted_in_chunks() -> None:
    [record], _ = await record_of(stream(event("a"), event("b"), event("c", "length"), DONE))
    assert (record.error, record.num_output_tokens, record.num_tokens_made) == ("", None, 3)


async def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    deltas = (b'{"reasoning_content":"a"}', b'{"tool_calls":[{"index":0}]}', b'{"role":"x"}')
    events = [b'data: {"choices":[{"delta":%b}]}\n\n' % delta for delta in deltas]
    [record], _ = await record_of(stream(*events, DONE))
    assert len(record.arrivals) == 2


async def test_known_pauses_are_what_is_measured() -> None:
    steps = stream(0.2, event("a"), 0.1, event("b"), 0.1, event("c", "stop"), DONE)
    [record], _ = await record_of(steps)
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.2
    assert min(record.gaps_s) >= 0.05
    assert record.tpot_s is not None
    assert record.tpot_s >= 0.09
    assert record.e2e_s >= 0.4


async def test_whole_answers_are_read_too() -> None:
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    [record], server = await record_of(whole(200, {"usage": usage}), name="embeddings")
    assert (record.error, record.num_prompt_tokens, list(record.arrivals)) == ("", 5, [])
    assert server.requests[0][1] == {"model": "scripted", "input": "Tell me"}


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        (whole(500, {"error": {"message": "broken"}}), "http 500", "broken"),
        (whole(503, "busy"), "http 503", "busy"),
        (stream(event("a")), "cut", "the stream ended without [DONE] or a finish reason"),
        ([stream_head(), http_chunk(event("a")), HANG_UP], "cut", "the server closed"),
        ([HANG_UP], "cut", "the server closed"),
        ([b"nonsense\r\n\r\n"], "cut", "the answer is no HTTP"),
        (stream(b'data: {"error": {"message": "gone"}}\n\n'), "error event", "gone"),
        (stream(b"data: {nonsense\n\n", DONE), "malformed", ""),
        (stream(event("a"), 30.0), "timeout", "no end after 0.3 s"),
    ],
)
async def test_failures_have_names(steps: list[Step], error: str, message: str) -> None:
    [record], _ = await record_of(steps, timeout_s=0.3 if error == "timeout" else 20.0)
    assert record.error == error
    assert record.message.startswith(message)
    assert record.ended_at >= record.sent_at


async def test_nobody_listens() -> None:
    async with scripted_openai(lambda path, body: None) as server:
        pass
    target = Target.from_url(server.url)
    async with ConnectionPool(target) as pool:
        record = await make_sender(server, pool, target).send(PROMPT, time.perf_counter())
    assert record.error == "no connection"


async def test_a_429_is_waited_out_if_that_is_wanted() -> None:
    refusal = whole(429, {"error": {"message": "full"}}, "Retry-After: 0")

    def steps(num_requests: int) -> Sequence[Step]:
        return refusal if num_requests < 3 else stream(*WHOLE)

    [record], _ = await record_of(steps, max_retries=2)
    assert (record.error, record.num_refused) == ("", 2)
    [record], _ = await record_of(steps, max_retries=1)
    assert (record.error, record.num_refused, record.status) == ("http 429", 1, 429)


async def test_connections_are_kept_and_closed_ones_replaced() -> None:
    records, server = await record_of(stream(*WHOLE), num=3)
    assert server.num_connections == 1
    closing = stream(*WHOLE, head=stream_head().replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    records, server = await record_of([*closing, HANG_UP], num=2)
    assert server.num_connections == 2
    # Closed behind an answer that promised to go on: sent again on another connection.
    records, server = await record_of([*stream(*WHOLE), HANG_UP], num=3)
    assert [record.error for record in records] == ["", "", ""]


async def test_an_answer_may_end_with_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    [record], _ = await record_of([head, *WHOLE, HANG_UP])
    assert (record.error, record.num_output_tokens) == ("", 3)


class Load:
    """A stage against a script."""

    def __init__(self, stage: LoadStage) -> None:
        self.run = StageRun(stage, 0.0)

    async def put(self, *steps: Step) -> StageRun:
        async with scripted_openai(lambda path, body: stream(*steps)) as server:
            target = Target.from_url(server.url)
            async with ConnectionPool(target) as pool:
                runner = LoadRunner(make_sender(server, pool, target), seed=0)
                self.run.started_at = time.perf_counter()
                await runner.run(self.run, self.prompts())
        return self.run

    @staticmethod
    def prompts() -> Iterator[Prompt]:
        while True:
            yield PROMPT


async def test_a_closed_loop_keeps_so_many_at_a_time() -> None:
    run = await Load(LoadStage(3, num_requests=10)).put(0.02, *WHOLE)
    assert (len(run.records), run.max_running, run.num_running) == (10, 3, 0)
    assert all(record.is_ok for record in run.records)


async def test_a_stage_ends_with_its_time() -> None:
    run = await Load(LoadStage(2, duration_s=0.3)).put(0.05, *WHOLE)
    assert len(run.records) >= 4
    assert all(record.sent_at - run.started_at < 0.3 for record in run.records)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    run = await Load(LoadStage(None, rate=200.0, num_requests=30)).put(0.5, *WHOLE)
    assert len(run.records) == 30
    assert run.max_running > 10


async def test_waiting_for_a_cap_counts_as_latency() -> None:
    stage = LoadStage(1, rate=1000.0, num_requests=5)
    run = await Load(stage).put(0.1, *WHOLE)
    assert run.max_running == 1
    last = run.records[-1]
    assert last.sent_at - last.due_at > 0.3  # four answers before it
    assert last.ttft_s is not None
    assert last.ttft_s > 0.4


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x:0"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        Target.from_url(url)


def test_urls() -> None:
    target = Target.from_url("https://example.org/api/v1/", "secret")
    assert (target.host, target.port, target.base_path) == ("example.org", 443, "/api")
    assert target.tls is not None
    request = target.request("POST", "/v1/models", b"{}")
    assert request.startswith(b"POST /api/v1/models HTTP/1.1\r\nHost: example.org\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in request
    assert request.endswith(b"Content-Length: 2\r\n\r\n{}")
    assert Target.from_url("127.0.0.1:80").port == 80


def test_extra_fields_replace_ours_and_null_leaves_them_out() -> None:
    extra = {"temperature": 0.7, "ignore_eos": None, "stream_options": None}
    body = Endpoint("completions", "m", extra_fields=extra).body(PROMPT)
    assert body == (
        b'{"model":"m","prompt":"Tell me","max_tokens":4,"temperature":0.7,"stream":true}'
    )
