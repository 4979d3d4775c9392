"""An ordered reader of a stream: every message of some subjects, in order, without gaps.

An ephemeral push consumer with flow control and heartbeats; when a delivery is out of order or the
server falls silent, a new consumer starts behind the last message handled. Callbacks, no queue:
this is the hot path of the detokenizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.broker.jetstream import JetStream
from shared.broker.named_subjects import is_flow_control
from shared.errors import BrokerError
from shared.event_wait import wait_event
from shared.nats_client.connection_end import end_subscription
from shared.nats_client.prompt_client import prompt
from shared.telemetry.log import get_logger

_HEARTBEAT_S = 1.0
_SILENCE_S = 3.0
_ASK_INTERVAL_S = 0.2

log = get_logger(__name__)


class LogReader:
    """Delivers messages to `on_message(subject, seq, data)` in stream order.

    `next_seq` is the stream sequence from which a new consumer would start: everything below it
    that matches the filters has been handled. `on_caught_up` is called whenever nothing is pending,
    and all that the stream's leader held at the start has been handled: the consumer may read from
    a replica that lags behind, and would not know.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        filters: Sequence[str],
        start_seq: int,
        on_message: Callable[[str, int, bytes], None],
        on_caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._nc = js.nc
        self._js = js
        self._stream = stream
        self._filters = list(filters)
        self.next_seq = max(1, start_seq)
        self.last_data: bytes | None = None  # of the message handled last
        self._ack_tokens: list[str] = []  # of the message that is being handled
        self.num_pending = 0  # messages that the server still has for us
        self._on_message = on_message
        self._on_caught_up = on_caught_up
        self._consumer = ""
        self._consumer_seq = 0
        self._generation = 0  # of the consumer
        self._subscription: Subscription | None = None
        self._last_heard = 0.0
        self._has_gap = False
        self._asked: list[str] = []  # flow control that waits for an answer
        self._wake = asyncio.Event()  # there is a gap, or one of these
        self._leader_seq: int | None = None  # its last message of ours; None: not known yet

    @property
    def time_s(self) -> float:
        """When the message was stored that is handled now, or was last: unix seconds, by the
        broker.
        """
        tokens = self._ack_tokens
        return int(tokens[-2] if len(tokens) == 9 else tokens[9]) / 1e9

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                await self._open()
                await self._watch()
                log.info("log_reader_restarts", stream=self._stream, next_seq=self.next_seq)
        finally:
            await self._close()

    async def _open(self) -> None:
        await self._close()
        while True:
            try:
                await self._create_consumer()
            except BrokerError as exc:
                log.warning("log_reader_cannot_open", stream=self._stream, error=str(exc))
                await asyncio.sleep(0.5)
            else:
                return

    async def _create_consumer(self) -> None:
        await self._unsubscribe()  # a consumer of a failed attempt may exist and deliver
        inbox = self._nc.new_inbox()
        self._has_gap = False
        self._asked.clear()
        self._consumer_seq = 0
        self._leader_seq = None
        self._last_heard = time.monotonic()
        self._generation = generation = self._generation + 1

        @prompt
        async def deliver(message: Msg) -> None:
            if generation == self._generation:  # else left over from an earlier consumer
                self._deliver(message)

        self._subscription = await self._nc.subscribe(
            inbox, cb=deliver, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        answer = await self._js.api(
            f"CONSUMER.CREATE.{self._stream}",
            {
                "stream_name": self._stream,
                "config": {
                    "deliver_subject": inbox,
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": self.next_seq,
                    "ack_policy": "none",
                    "max_deliver": 1,
                    "flow_control": True,
                    "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
                    "filter_subjects": self._filters,
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": int(30e9),
                },
            },
        )
        self._consumer = answer["name"]
        if self._consumer_seq == 0:  # else the messages that came meanwhile know it better
            num_on_the_way: int = answer.get("delivered", {}).get("consumer_seq", 0)
            self.num_pending = answer.get("num_pending", 0) + num_on_the_way
        await self._ask_leader()

    async def _ask_leader(self) -> None:
        """How far to read until this is all. Raises BrokerError."""
        if self._on_caught_up is None:
            return
        lasts = [await self._js.get_last(self._stream, subject) for subject in self._filters]
        self._leader_seq = max((last.seq for last in lasts if last is not None), default=0)
        self._maybe_caught_up()

    def look_soon(self) -> None:
        """The connection is another one: the consumer may have died with the one before."""
        self._wake.set()

    async def _watch(self) -> None:
        """Return when the consumer has a gap, is silent, or may have died with its connection."""
        reconnects = self._nc.stats["reconnects"]
        while True:
            if await wait_event(self._wake, self._pause_s):
                self._wake.clear()
                await self._answer()
            if self._has_gap:
                return
            if self._nc.stats["reconnects"] != reconnects:
                return
            if self._is_behind_leader and self.num_pending == 0:
                with contextlib.suppress(BrokerError):  # what we wait for may be gone by now
                    await self._ask_leader()
            if time.monotonic() - self._last_heard > _SILENCE_S and self._nc.is_connected:
                return

    @property
    def _pause_s(self) -> float:
        """Until the next look: heartbeats come each second, and put off the end of patience."""
        left_s = self._last_heard + _SILENCE_S - time.monotonic()
        return _ASK_INTERVAL_S if self._is_behind_leader else max(_ASK_INTERVAL_S, left_s)

    def _deliver(self, message: Msg) -> None:
        self._last_heard = time.monotonic()
        reply = message.reply
        if not reply or not reply.startswith("$JS.ACK"):
            self._on_status(message)
            return
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>,
        # with a domain and an account hash in front of the stream on some servers.
        tokens = reply.split(".")
        consumer_seq = int(tokens[-3]) if len(tokens) == 9 else int(tokens[8])
        stream_seq = int(tokens[-4]) if len(tokens) == 9 else int(tokens[7])
        if self._has_gap or consumer_seq != self._consumer_seq + 1:
            self._note_gap()
            return
        self._consumer_seq = consumer_seq
        self._ack_tokens = tokens
        self._on_message(message.subject, stream_seq, message.data)
        self.next_seq, self.last_data = stream_seq + 1, message.data
        pending = tokens[-1] if len(tokens) == 9 else tokens[10]
        self.num_pending = int(pending)
        if self.num_pending == 0:
            self._maybe_caught_up()

    def _on_status(self, message: Msg) -> None:
        headers: dict[str, Any] = message.headers or {}
        # A flow control request, or what is left of one that got lost.
        asked = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if is_flow_control(asked, self._stream):
            self._asked.append(asked)
            self._wake.set()
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_seq:
            self._note_gap()

    def _note_gap(self) -> None:
        self._has_gap = True
        self._wake.set()

    async def _answer(self) -> None:
        asked, self._asked = self._asked, []
        for subject in asked:
            await self._nc.publish(subject)

    @property
    def _is_behind_leader(self) -> bool:
        return self._leader_seq is not None and self.next_seq <= self._leader_seq

    def _maybe_caught_up(self) -> None:
        if self._on_caught_up is None or self._leader_seq is None or self._is_behind_leader:
            return
        if self.num_pending == 0:
            self._on_caught_up()

    async def _close(self) -> None:
        await self._unsubscribe()
        consumer, self._consumer = self._consumer, ""
        if consumer and self._nc.is_connected:
            with contextlib.suppress(BrokerError):
                await self._js.api(f"CONSUMER.DELETE.{self._stream}.{consumer}")

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        self._generation += 1
        if subscription is not None:
            await end_subscription(subscription)
