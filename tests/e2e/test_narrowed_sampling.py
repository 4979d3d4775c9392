"""typical_p, XTC and dynamic temperature on a real model, once no older worker can have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord
from tests.e2e.role_stack import MODEL_NAME, REAL_ENGINE, RoleStack
from tests.eventually import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

PROMPT = {"model": MODEL_NAME, "prompt": "Once upon a time", "seed": 5, "max_tokens": 24}
ASKED: list[dict[str, Any]] = [
    {"typical_p": 0.2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.01},
    {"dynatemp_range": 0.9, "dynatemp_exponent": 2.0},
]
OFF = {"typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.2, "dynatemp_range": 0}


async def test_each_draws_otherwise_and_again_the_same(tmp_path: Path) -> None:
    async with RoleStack(tmp_path, first_level=1) as stack:
        await stack.cluster.level.put(LevelRecord(1, is_held=True), 0)
        stack.start_worker(*REAL_ENGINE)
        await stack.wait_ready(1)
        async with httpx.AsyncClient(base_url=stack.url(), timeout=60) as client:

            async def ask(**fields: Any) -> httpx.Response:
                return await client.post("/v1/completions", json={**PROMPT, **fields})

            async def text(**fields: Any) -> str:
                answer = await ask(**fields)
                assert answer.status_code == 200, answer.text
                return str(answer.json()["choices"][0]["text"])

            for fields in ASKED:
                early = await ask(**fields)
                assert early.status_code == 503
                assert "feature level 2, and the service is at 1" in early.text
            plain = await text()
            assert await text(**OFF) == plain
            revision = (await stack.cluster.level.read()).revision
            await stack.cluster.level.put(LevelRecord(FEATURE_LEVEL), revision)

            async def is_taken() -> bool:
                return (await ask(**ASKED[0])).status_code == 200

            await eventually_async(is_taken, 30.0)
            told = [await text(**fields) for fields in ASKED]
            assert len({plain, *told}) == 1 + len(ASKED)
            assert [await text(**fields) for fields in ASKED] == told
            for name, value in (("typical_p", 0), ("xtc_probability", 2), ("dynatemp_range", -1)):
                refused = await ask(**{name: value})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
