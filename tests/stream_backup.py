"""Backup and restore of streams by JetStream's own API, as nats.io's `nats` does it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from nats.aio.msg import Msg

from shared.broker.jetstream import JetStream


@dataclass(frozen=True)
class StreamBackup:
    name: str
    config: dict[str, Any]
    state: dict[str, Any]
    chunks: list[bytes]


async def back_up(js: JetStream) -> list[StreamBackup]:
    """All streams of the account, with their consumers."""
    names = (await js.api("STREAM.NAMES"))["streams"]
    return [await _back_up_one(js, name) for name in names]


async def restore(js: JetStream, backups: list[StreamBackup]) -> None:
    for backup in backups:
        body = {"config": backup.config, "state": backup.state}
        target = (await js.api(f"STREAM.RESTORE.{backup.name}", body))["deliver_subject"]
        for chunk in backup.chunks:
            await js.nc.request(target, chunk, timeout=10)
        answer = msgspec.json.decode((await js.nc.request(target, b"", timeout=10)).data)
        assert "error" not in answer, answer


async def _back_up_one(js: JetStream, name: str) -> StreamBackup:
    chunks: list[bytes] = []
    ended = asyncio.Event()

    async def on_chunk(message: Msg) -> None:
        if message.data:
            chunks.append(message.data)
            if message.reply:  # else the server waits with the next ones
                await message.respond(b"")
        else:
            ended.set()

    inbox = js.nc.new_inbox()
    subscription = await js.nc.subscribe(inbox, cb=on_chunk)
    answer = await js.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": inbox})
    async with asyncio.timeout(20):
        await ended.wait()
    await subscription.unsubscribe()
    return StreamBackup(name, answer["config"], answer["state"], chunks)
