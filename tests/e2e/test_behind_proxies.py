"""OpenAI's client behind a proxy that cuts: one generation by real roles, and its exact text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from shared.protocol.codec import decode
from shared.protocol.text import Done
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.http_proxy import HttpProxy, ProxyRules

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

# 200 tokens of 0.02 s at least: several times what the proxy waits.
ASKED: dict[str, Any] = {
    "model": MODEL_NAME,
    "prompt": "Once upon a time",
    "max_tokens": 200,
    "temperature": 0,
    "seed": 7,
    "extra_body": {"ignore_eos": True},
}


async def test_a_keyed_answer_that_takes_longer_than_the_proxy_waits(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        (port,) = stack.ports.values()
        async with (
            HttpProxy(port, ProxyRules(idle_s=1.0)) as proxy,
            AsyncOpenAI(base_url=f"{stack.url()}/v1", api_key="none") as direct,
            AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=20) as client,
        ):
            undisturbed = await direct.completions.create(**ASKED)
            answer = await client.completions.create(
                **ASKED, extra_headers={"Idempotency-Key": "tale-1", "X-Resume-Grace": "60"}
            )
            assert proxy.num_timed_out > 0
            assert proxy.num_requests == proxy.num_timed_out + 1
        results, subjects = stack.cluster.js, stack.cluster.subjects
        done = [m async for m in results.direct_scan(subjects.results_stream, subjects.done("*"))]
    assert answer.choices[0].text == undisturbed.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == ASKED["max_tokens"]
    rids = [decode(Done, message.data).rid for message in done]
    assert rids == [undisturbed._request_id, answer._request_id]
