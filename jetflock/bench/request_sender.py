"""Sends one request, and keeps the record of how it went; the first ones try the server."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from jetflock.bench.answer_reader import AnswerReader, Chunk
from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.endpoint import Endpoint
from jetflock.bench.http_connection import ConnectionCut
from jetflock.bench.prompt import Prompt
from jetflock.bench.request_record import RequestRecord
from jetflock.bench.target import Target
from shared.errors import ConfigError

_RETRY_AFTER_S = 1.0  # where a 429 does not tell
_NO_IGNORE_EOS = "the server does not know ignore_eos: outputs may be shorter than asked for\n"


@dataclass(frozen=True, slots=True)
class RequestSender:
    """Every request gets a record, whatever happens to it."""

    pool: ConnectionPool
    target: Target
    endpoint: Endpoint
    timeout_s: float  # of a request, with its retries
    max_retries: int = 0  # after a 429

    async def send(self, prompt: Prompt, due_at: float) -> RequestRecord:
        """Latencies count from `due_at`, also over retries."""
        record = RequestRecord(due_at)
        payload = self.target.request("POST", self.endpoint.path, self.endpoint.body(prompt))
        record.sent_at = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._attempts(payload, record)
        except TimeoutError:
            self._failed(record, "timeout", f"no end after {self.timeout_s:g} s")
        except ConnectionCut as exc:
            self._failed(record, "cut", str(exc))
        except (OSError, ssl.SSLError) as exc:
            self._failed(record, "no connection", str(exc))
        return record

    async def _attempts(self, payload: bytes, record: RequestRecord) -> None:
        decoder = msgspec.json.Decoder(Chunk)
        while True:
            reader = AnswerReader(record, decoder)
            await self.pool.exchange(payload, reader)
            if record.status != 429 or record.num_refused >= self.max_retries:
                return
            record.num_refused += 1
            pause_s = reader.retry_after_s
            await asyncio.sleep(_RETRY_AFTER_S if pause_s is None else pause_s)
            record.error = record.message = ""

    def _failed(self, record: RequestRecord, error: str, message: str) -> None:
        record.ended_at = time.perf_counter()
        record.error = record.error or error
        record.message = record.message or message


async def warmed_up(
    sender: RequestSender, prompts: Iterator[Prompt], num_requests: int
) -> RequestSender:
    """The sender whose bodies the server takes after the first requests: with `ignore_eos`, or not.

    Raises ConfigError when the server answers neither.
    """
    for idx in range(num_requests):
        record = await _sent(sender, next(prompts))
        if idx == 0 and record.status in (400, 422) and sender.endpoint.ignores_eos:
            plain = replace(sender, endpoint=replace(sender.endpoint, ignores_eos=False))
            if (await _sent(plain, next(prompts))).is_ok:
                sys.stderr.write(_NO_IGNORE_EOS)
                sender = plain
                continue
        if not record.is_ok:
            raise ConfigError(
                f"the first request failed ({record.error}: {record.message}); --warmup 0 goes on"
            )
    return sender


async def _sent(sender: RequestSender, prompt: Prompt) -> RequestRecord:
    return await sender.send(prompt, time.perf_counter())
