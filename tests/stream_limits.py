"""Streams as full as a test wants them: their limits are moved, as an operator moves them."""

from __future__ import annotations

from typing import Any

from shared.broker.jetstream import JetStream
from shared.storage.stream_room import usage_of


async def set_limit(js: JetStream, stream: str, limit: int, of: str = "max_bytes") -> None:
    config: dict[str, Any] = (await js.api(f"STREAM.INFO.{stream}"))["config"]
    await js.api(f"STREAM.UPDATE.{stream}", config | {of: limit})


async def fill(js: JetStream, stream: str, share: float) -> None:
    """What is in it is that share of what it may have."""
    info = await js.api(f"STREAM.INFO.{stream}")
    await set_limit(js, stream, int(info["state"]["bytes"] / share))


async def usage(js: JetStream, stream: str) -> float:
    return usage_of(await js.api(f"STREAM.INFO.{stream}"))
