"""Leaves a NATS server that is cut off from its peers for one that is not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import Client, Server

from shared.broker.jetstream import JetStream
from shared.broker.stream_info import has_quorum
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.event_wait import beat_s, wait_event
from shared.nats_client.connection import connect_once, round_trip
from shared.nats_client.connection_end import abort_transport, end_connection
from shared.nats_client.watched_client import WatchedClient
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

PROBE_S = 1.2
_BETWEEN_MOVES_S = 10.0
_JITTER_S = 0.3  # not all clients of a server in the same moment
_PATIENCE_S = 4.0  # with another server: its peers may be choosing a leader
_AGAIN_S = (0.3, 0.8)  # between two looks while nothing is stored
_LOOK_S = 1.0
_HEARD_S = 3.0  # leaders hear their followers each second
_TICK_S = 0.05
_LATE_S = 0.3  # a loop or an echo that comes so late makes answers late
_HELD_UP_S = 0.3  # an echo that is not there, while others have come, is behind them
_LOOKS = 2  # in a row, before it is said

log = get_logger(__name__)


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


class OwnPace:
    """How long messages wait in this process, or on its connection: an answer that comes late
    because of that says nothing about the streams.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._late_s = 0.0  # the longest that the loop came too late
        self._echo_s: float | None = None  # of a message to ourselves; None: it has not come
        self._heard_at = float("-inf")  # the last message of any kind

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """While answers are waited for."""
        tasks = [asyncio.create_task(work) for work in (self._tick(), self._hear_echo())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @property
    def is_slow(self) -> bool:
        """Whether the loop was late, or what was sent to ourselves stands behind other messages."""
        if self._echo_s is None:
            is_held_up = time.monotonic() - self._heard_at < _HELD_UP_S
        else:
            is_held_up = self._echo_s > _LATE_S
        return is_held_up or self._late_s > _LATE_S

    async def _tick(self) -> None:
        num_heard = self._nc.stats["in_msgs"]
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._late_s = max(self._late_s, now - slept_at - _TICK_S)
            if self._nc.stats["in_msgs"] != num_heard:
                num_heard, self._heard_at = self._nc.stats["in_msgs"], now

    async def _hear_echo(self) -> None:
        sent_at = time.monotonic()
        if await round_trip(self._nc, PROBE_S):
            self._echo_s = time.monotonic() - sent_at


@dataclass(slots=True)
class ServerVerdict:
    """What the last look at our server found."""

    is_cut_off: bool = False


CUT_OFF = "NATS stores nothing: our server is cut off from its peers, or they have no leader"


class ServerWatch:
    """Looks when a request has waited for long, and does nothing otherwise.

    Before it leaves, another server must reach more of the leaders that we wait for: ones that have
    heard a majority after we began to suspect. While servers choose a leader nobody moves.
    """

    def __init__(
        self, nc: WatchedClient, config: ClusterConfig, subjects: Subjects, verdict: ServerVerdict
    ) -> None:
        self._nc = nc
        self._config = config
        self._subjects = subjects
        self._verdict = verdict
        self._suspected: set[str] = set()  # streams
        self._wake = asyncio.Event()
        self._moved_at = float("-inf")
        self._closing: object = None  # a transport that was closing at the last look

    async def run(self) -> None:
        """Until cancelled."""
        self._nc.on_slow = self._suspect
        while True:
            if await wait_event(self._wake, beat_s(_LOOK_S)):
                self._wake.clear()
                await self._judge()
            self._abort_stuck()

    def _suspect(self, subject: str) -> None:
        if not is_about_streams(subject, self._subjects):
            return
        self._suspected.add(stream_behind(subject, self._subjects) or self._any_stream)
        self._wake.set()

    @property
    def _any_stream(self) -> str:
        return f"KV_{self._subjects.meta_bucket}"

    async def _judge(self) -> None:
        """Until our server, or one that we went to, reaches all leaders that we wait for."""
        began_at, num_failed = time.monotonic(), 0
        while True:
            pace = OwnPace(self._nc)
            async with pace.measured():
                num_here = await self._num_here()
            if num_here >= len(self._suspected):
                break
            if not pace.is_slow:  # else a new connection would make it slower
                num_failed += 1
                if num_failed == _LOOKS:
                    log.warning("nats_stores_nothing", url=_name(self._nc.connected_url))
                    self._verdict.is_cut_off = True
                await self._maybe_move(num_here, began_at)
            self._abort_stuck()
            await asyncio.sleep(random.uniform(*_AGAIN_S))
        if self._verdict.is_cut_off:
            log.info("nats_stores_again", url=_name(self._nc.connected_url))
        self._verdict.is_cut_off = False
        self._suspected.clear()
        self._wake.clear()

    async def _num_here(self) -> int:
        return await self._num_served(self._nc, time.monotonic() - _HEARD_S)

    async def _num_served(self, nc: Client, heard_since: float) -> int:
        return await count_served(nc, self._subjects, sorted(self._suspected), heard_since)

    async def _maybe_move(self, num_here: int, began_at: float) -> None:
        here = self._nc.connected_url
        if here is None or time.monotonic() - self._moved_at < _BETWEEN_MOVES_S:
            return
        others = [url for url in self._nc.servers if url.netloc != here.netloc]
        found = await self._first_better(others, num_here, began_at)
        if found is None:
            return
        target, num_there = found
        await asyncio.sleep(random.random() * _JITTER_S)
        if await self._num_here() >= num_there or self._nc.connected_url != here:
            return
        log.warning("nats_server_left", url=_name(here), target=_name(target))
        self._moved_at = time.monotonic()
        await move(self._nc, target)

    async def _first_better(
        self, urls: list[ParseResult], num_here: int, began_at: float
    ) -> tuple[ParseResult, int] | None:
        """The first server that shows that it reaches more leaders than ours, and how many."""
        asking = [asyncio.create_task(self._better(url, num_here, began_at)) for url in urls]
        try:
            for asked in asyncio.as_completed(asking):
                if (found := await asked) is not None:
                    return found
            return None
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _better(
        self, url: ParseResult, num_here: int, began_at: float
    ) -> tuple[ParseResult, int] | None:
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                nc = await connect_once(self._config, "probe", url.geturl())
                try:
                    while True:
                        num_there = await self._num_served(nc, began_at)
                        if num_there > num_here:
                            return url, num_there
                        await asyncio.sleep(PROBE_S / 4)  # an answer may come at once
                finally:
                    await end_connection(nc)
        return None

    def _abort_stuck(self) -> None:
        """nats-py connects anew only when the old connection is closed, and that waits until all is
        written: into a dead link, for many minutes.
        """
        transport = self._nc._transport
        if not self._nc.is_reconnecting or transport is None:
            self._closing = None
        elif self._closing is transport:
            abort_transport(self._nc)
        else:
            self._closing = transport


async def move(nc: Client, target: ParseResult) -> None:
    """To that server, if it is known: nats-py would go to any. Its handler is asked once."""

    def choose(servers: list[Server], _: object) -> tuple[Server | None, float]:
        nc._reconnect_to_server_handler = None
        return next((each for each in servers if each.uri.netloc == target.netloc), None), 0.0

    nc._reconnect_to_server_handler = choose
    await nc.force_reconnect()


def _name(url: ParseResult | None) -> str:
    """The URL without credentials."""
    return "" if url is None else f"{url.hostname}:{url.port}"
