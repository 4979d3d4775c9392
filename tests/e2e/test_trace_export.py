"""Traces of real processes, sent to a collector: across kill -9, and when the collector is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.otlp_receiver import OtlpReceiver, otlp_receiver

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(120)]

TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NUM_TOKENS = 150  # 3 s: the first spans are sent meanwhile


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield running


async def test_a_killed_workers_request_goes_on_in_its_trace_and_a_dead_collector_harms_nobody(
    tmp_path: Path, receiver: OtlpReceiver
) -> None:
    async with RoleStack(tmp_path) as stack:
        first = stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        stream = Stream()
        reading = asyncio.create_task(
            stream.post(
                stack.url(),
                completion_body(max_tokens=NUM_TOKENS, seed=1),
                traceparent=f"00-{TRACE}-{CLIENT_SPAN}-01",
            )
        )
        await stack.wait_until(lambda: bool(receiver.named("prefill")))
        await stream.wait_for_tokens(10)
        first.kill()
        stack.start_worker(*SCRIPTED)
        await reading
        assert stream.is_done
        name = f"text_completion {MODEL_NAME}"
        expected = {name, "prepare", "queue wait", "claim", "prefill", "decode", "detokenize"}
        await stack.wait_until(lambda: expected <= {span.name for span in receiver.spans})
        check_trace(receiver, name)

        receiver.close()
        undisturbed = Stream()
        await undisturbed.post(stack.url(), completion_body(max_tokens=NUM_TOKENS, seed=1))
        assert undisturbed.text == stream.text
        assert await asyncio.to_thread(stack.roles[0].stop, 20.0) < 15


def check_trace(receiver: OtlpReceiver, name: str) -> None:
    assert receiver.paths == {"/v1/traces"}
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    [server] = receiver.named(name)
    assert server.parent_id == CLIENT_SPAN
    others = [span for span in receiver.spans if span is not server]
    assert {span.parent_id for span in others} == {server.span_id}
    services = {span.name: span.service for span in receiver.spans}
    assert services[name] == services["prepare"] == "jetflock-frontend"
    assert services["claim"] == services["decode"] == "jetflock-worker"
    assert services["detokenize"] == "jetflock-detok"
    killed, taker = receiver.named("claim")
    assert killed.instance != taker.instance
    assert taker.attributes["jetflock.previous_worker"] == killed.instance
    assert taker.attributes["jetflock.hand_over"] == "died"
    assert taker.attributes["jetflock.deliveries"] == 2
    assert taker.attributes["jetflock.resumed_tokens"]
    [decode] = receiver.named("decode")  # that of the killed one died with it
    assert decode.instance == taker.instance
    assert decode.attributes["jetflock.output_tokens"] == NUM_TOKENS
    assert len(receiver.named("queue wait")) == 1
