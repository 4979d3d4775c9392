"""What clients send and get stays out of the logs of all roles, also at the level `debug`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.role_stack import MODEL_NAME, REAL_ENGINE, RoleStack

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

SECRET = "canary7421"
KEY = f"key-{SECRET}"
CHAT = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    """A chat whose every text is a secret."""
    message = {"role": "user", "content": f"Say {SECRET}: tell me a story about a dragon."}
    return {"model": MODEL_NAME, "messages": [message], "max_tokens": 60, "seed": 1, **fields}


async def test_no_role_logs_prompts_keys_or_answers(tmp_path: Path) -> None:
    flags = ("--log-level", "debug")
    async with RoleStack(tmp_path, *flags) as stack:
        frontend = stack.start_frontend("--api-key", KEY)
        first = stack.start_worker(*REAL_ENGINE)
        stack.start_worker(*REAL_ENGINE)
        await stack.wait_ready(2)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            base_url=stack.url(frontend), headers=headers, timeout=60
        ) as client:
            running = [
                asyncio.create_task(client.post(CHAT, json=body(seed=seed, stop=[SECRET])))
                for seed in range(4)
            ]
            await asyncio.sleep(0.3)
            first.kill()  # what goes on elsewhere is read back from the log
            answers = [(await task).json() for task in running]
            schema = {"type": "object", "properties": {SECRET: {"type": "integer"}}}
            wrong = [
                body(model=SECRET),
                body(temperature=SECRET),
                body(stop=[""] * 3, user=SECRET),
                body(guided_regex=f"({SECRET}"),
                {**body(), "messages": [{"role": SECRET, "content": SECRET}]},
            ]
            for fields in wrong:
                assert (await client.post(CHAT, json=fields)).status_code in (400, 404)
            good = await client.post(CHAT, json=body(guided_json=schema, some_unknown_field=SECRET))
            assert good.status_code == 200, good.text
            unknown = await client.post(
                CHAT, json=body(), headers={"authorization": f"Bearer {SECRET}"}
            )
            assert unknown.status_code == 401
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        for role in stack.roles:
            assert SECRET not in role.log, role.name
            for text in texts:
                assert text[:20] not in role.log, role.name
        assert "request_finished" in frontend.log
        assert frontend.log.count("request_refused") == len(wrong) + 1
