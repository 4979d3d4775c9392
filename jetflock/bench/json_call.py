"""A question to the server beside the load: its models, its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.target import Target
from shared.errors import JetflockError


class CallFailed(JetflockError):
    """The server refused, does not answer, or has no such route."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _WholeAnswer:
    """A `ResponseReader` that keeps everything."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.status = status

    def feed(self, data: bytes, now: float) -> None:
        self.body += data

    def end(self, now: float) -> None:
        pass


async def json_call(
    pool: ConnectionPool, target: Target, path: str, body: object = None, timeout_s: float = 30.0
) -> Any:
    """GET, or POST with a body. Raises CallFailed."""
    answer = _WholeAnswer()
    content = b"" if body is None else msgspec.json.encode(body)
    method = "GET" if body is None else "POST"
    try:
        async with asyncio.timeout(timeout_s):
            await pool.exchange(target.request(method, path, content), answer)
    except (OSError, TimeoutError) as exc:
        where = f"{target.host}:{target.port}"
        reason = str(exc) or "no answer in time"
        raise CallFailed(f"{where} does not answer {path}: {reason}") from exc
    if answer.status != 200:
        told = answer.body[:200].decode(errors="replace")
        raise CallFailed(f"{path} was answered with {answer.status}: {told}", answer.status)
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError as exc:
        raise CallFailed(f"{path} was answered with something that is no JSON: {exc}") from exc
