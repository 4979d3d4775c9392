"""Asks by way of a server which streams can be read and written there: their leaders tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from nats.aio.client import Client

from shared.broker.jetstream import JetStream
from shared.errors import BrokerError
from shared.storage.stream_quorum import has_quorum
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.subjects import Subjects

PROBE_S = 1.2


def stream_behind(subject: str, subjects: Subjects) -> str | None:
    """The stream whose leader a request on this subject needs, if its subject names one."""
    called = subject.removeprefix(subjects.api_prefix)
    tokens = called.split(".")
    if tokens[0] == "$KV":
        return f"KV_{tokens[1]}"
    if called != subject and called.startswith("STREAM.MSG.GET."):
        return tokens[-1]
    if tokens[0] != subjects.prefix:
        return None
    return {
        "own": subjects.tokens_stream,
        "tok": subjects.tokens_stream,
        "req": subjects.requests_stream,
        "done": subjects.results_stream,
    }.get(tokens[1])


def is_about_streams(subject: str, subjects: Subjects) -> bool:
    """Whether JetStream should have answered."""
    return subject.startswith("$JS.") or stream_behind(subject, subjects) is not None


async def count_served(
    nc: Client, subjects: Subjects, streams: Iterable[str], heard_since: float
) -> int:
    """How many of these streams have a leader that `nc` reaches, and that reaches a majority.

    `heard_since` (monotonic): when the majority must have answered the leader, or later. One that
    is cut off from its followers goes on as leader for seconds, and can store nothing.
    """
    js = JetStream(nc, PROBE_S, subjects.js_domain)
    answers = await asyncio.gather(*(_is_served(js, each, heard_since) for each in streams))
    return sum(answers)


async def _is_served(js: JetStream, stream: str, heard_since: float) -> bool:
    asked_at = time.monotonic()
    try:
        info = await js.api(f"STREAM.INFO.{stream}")
    except BrokerError as exc:
        return exc.err_code == ERR_STREAM_NOT_FOUND  # an answer: nothing here is waited for
    return has_quorum(info, asked_at - heard_since)
