"""One line for every answer, whatever came of it; nothing in it that a client has written."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.protocol.finish import Finish, FinishReason, RunFacts
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def lines(logs: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"] == event]


async def test_a_finished_request_leaves_a_line_with_its_course(stack: Stack) -> None:
    """An answer in one piece has its first token where its only worker had it, not at its end."""
    runs = iter(RunFacts(workers, 0.0, 0.05, 0.2) for workers in (("a", "b"), ("a",)))
    stack.backend.script = lambda request: Script(
        ["Hello"], Finish(FinishReason.STOP, run=next(runs)), delay_s=0.3
    )
    running = await stack.start_frontend()
    with capture_logs() as logs:
        async with running.client() as client:
            for _ in range(2):
                answer = await client.post(CHAT, json=BODY)
                assert answer.status_code == 200, answer.text
    handed_over, alone = lines(logs, "request_finished")
    assert (handed_over["workers"], handed_over["hand_overs"]) == (["a", "b"], 1)
    for name in ("queue_ms", "ttft_ms"):
        assert handed_over[name] is None  # not to be told of the first worker
    assert 200 <= alone["e2e_ms"] - alone["ttft_ms"] < 300 <= alone["e2e_ms"]
    assert alone["queue_ms"] == pytest.approx(alone["ttft_ms"] - 50)
    for line in (handed_over, alone):
        assert (line["prefill_ms"], line["decode_ms"]) == (50, 200)
        assert (line["status"], line["finish"], line["transport"]) == (200, "stop", "http")
        assert line["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (BODY | {"temperature": "hot"}, 400, "invalid_type", "temperature"),
        (BODY | {"model": "secret-model"}, 404, "model_not_found", "model"),
        (BODY | {"messages": [{"role": "secret", "content": "x"}]}, 400, None, "messages"),
    ],
)
async def test_a_refusal_leaves_a_line_on_both_transports(
    stack: Stack, body: dict[str, Any], status: int, code: str | None, param: str
) -> None:
    running = await stack.start_frontend()
    with capture_logs() as logs:
        async with running.client() as client:
            answer = await client.post(CHAT, json=body, headers={"x-request-id": "mine"})
            assert answer.status_code == status
        nc = stack.caller
        subject = "jetflock.chat.completions"
        await nc.request(subject, answer.request.content, timeout=10)
    over_http, over_nats = lines(logs, "request_refused")
    assert over_http["client_id"] == "mine"
    assert (over_http["route"], over_http["transport"]) == (CHAT, "http")
    assert over_nats["transport"] == "nats"
    for line in (over_http, over_nats):
        assert (line["status"], line["param"]) == (status, param)
        assert code is None or line["code"] == code
        assert "secret" not in repr(line)


async def test_probes_and_scrapes_leave_no_line(stack: Stack) -> None:
    running = await stack.start_frontend()
    with capture_logs() as logs:
        async with running.client() as client:
            for path in ("/health", "/health/live", "/metrics"):
                assert (await client.get(path)).status_code == 200
            assert (await client.get("/nothing-here")).status_code == 404
    assert [line["route"] for line in lines(logs, "request_refused")] == ["unknown"]
    assert not lines(logs, "request_finished")
