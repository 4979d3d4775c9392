"""The first requests: do they work, and does the server know `ignore_eos`?"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from jetflock.bench.prompt import Prompt
from jetflock.bench.request_record import RequestRecord
from jetflock.bench.request_sender import RequestSender
from shared.errors import ConfigError

_NO_IGNORE_EOS = "the server does not know ignore_eos: outputs may be shorter than asked for\n"


async def warmed_up(
    sender: RequestSender, prompts: Iterator[Prompt], num_requests: int
) -> RequestSender:
    """The sender whose bodies the server takes: with `ignore_eos`, or without.

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
