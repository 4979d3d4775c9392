"""Files and batches by OpenAI's client: what tests do again and again."""

from __future__ import annotations

import json
from typing import Any, Final

from openai import AsyncOpenAI
from openai.types import Batch

from tests.eventually import Looks

COMPLETIONS: Final = "/v1/completions"
OVER = ("completed", "failed", "expired", "cancelled")


def line(idx: int, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": "x" * (idx + 1)} | body
    return {"custom_id": f"line-{idx}", "method": "POST", "url": url, "body": asked}


def jsonl(*lines: Any) -> bytes:
    return "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines).encode()


async def upload(client: AsyncOpenAI, content: bytes, **options: Any) -> str:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch", **options)
    return file.id


async def create(
    client: AsyncOpenAI, content: bytes, endpoint: str = COMPLETIONS, window: str = "24h"
) -> Batch:
    return await client.batches.create(
        input_file_id=await upload(client, content),
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
        metadata={"job": "nightly"},
    )


async def until(client: AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    async for _ in Looks(60, longest_pause_s=0.1):
        if batch.status in statuses:
            break
        assert batch.status not in OVER, batch
        batch = await client.batches.retrieve(batch.id)
    return batch


async def rows(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(text) for text in content.text.splitlines()]
