"""A connection to the simulated broker, with the face of `nats.aio.client.Client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from nats.errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    MaxPayloadError,
    NoRespondersError,
)
from nats.errors import TimeoutError as NatsTimeoutError

from tests.simulation.broker import Broker
from tests.simulation.process_loop import ProcessLoop
from tests.simulation.stored_stream import Headers
from tests.simulation.world import World

_RETRY_S = 0.2
_STREAM_KINDS = {"own": "log", "tok": "log", "done": "done", "req": "req", "dead": "dead"}


class Message:
    """A received message."""

    __slots__ = ("_connection", "data", "headers", "reply", "subject")

    def __init__(
        self,
        connection: Connection,
        subject: str,
        reply: str,
        data: bytes,
        headers: Headers | None,
    ) -> None:
        self._connection = connection
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = headers

    async def respond(self, data: bytes) -> None:
        await self._connection.publish(self.reply, data)


class Subscription:
    """Messages wait in a queue; one task calls the callback with one after the other."""

    def __init__(
        self,
        connection: Connection,
        sid: int,
        subject: str,
        callback: Callable[[Any], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self.sid = sid
        self.subject = subject
        self._callback = callback
        self._queue: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_busy = False
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, message: Message) -> None:
        if not self._is_closed:
            self._queue.append(message)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._queue:
                self._is_busy = True
                try:
                    await self._callback(self._queue.popleft())
                except asyncio.CancelledError:
                    raise
                except Exception as exc:  # as nats-py: told, and forgotten
                    self._connection.note(f"callback failed: {exc!r}")
            self._is_busy = False
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            self._waiter = loop.create_future()
            await self._waiter

    async def unsubscribe(self) -> None:
        if self._connection.is_closed:
            raise ConnectionClosedError
        if self._is_closed:
            raise BadSubscriptionError
        self._close()
        self._connection.forget(self)

    async def drain(self) -> None:
        """No more interest; what has been sent by now is still handled."""
        if self._connection.is_closed:
            raise ConnectionClosedError
        if self._is_closed:
            raise BadSubscriptionError
        self._connection.send_unsubscribe(self)
        await self._connection.flush()
        if self._queue or self._is_busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._close()
        self._connection.forget(self)

    def _close(self) -> None:
        self._is_closed = True
        self._task.cancel()


@dataclass(slots=True)
class Weather:
    """How slow the network is: seconds of one way."""

    base_s: float = 0.0003
    spread_s: float = 0.0005
    slow_share: float = 0.0  # of the messages take up to `slow_s`
    slow_s: float = 0.05


class Connection:
    """Order is kept each way, as TCP does; what JetStream handles apart may overtake."""

    def __init__(
        self, world: World, broker: Broker, loop: ProcessLoop, name: str, weather: Weather
    ) -> None:
        self._world = world
        self._broker = broker
        self._loop = loop
        self.name = name
        self._weather = weather
        self._rng = world.rng
        self.max_payload = 1 << 20
        self.is_closed = False
        self.is_connected = True
        self.stats = {"reconnects": 0}
        self.options: dict[str, Any] = {}
        self.on_loss: Callable[[], None] = lambda: None
        self.on_reconnect: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._life = 0  # counts connections: what was under way on an earlier one is lost
        self._cut_at = 0.0  # what arrives at the server before, arrives in spite of a break
        self._sent_until = 0.0
        self._handled_until: dict[str, float] = {}
        self._received_until = 0.0
        self._held: list[Callable[[], None]] | None = None  # while the network is cut
        self._is_lossy = 0.0
        self._subscriptions: dict[int, Subscription] = {}
        self._num_sids = 0
        self._num_inboxes = 0
        self._requests: dict[str, asyncio.Future[Message]] = {}
        self._unsent: list[tuple[str, str, bytes, Headers | None]] = []
        self._mux = f"_INBOX_jf_sim.{name}-r"
        broker.subscribe(self, 0, f"{self._mux}.*")

    def note(self, what: str) -> None:
        self._world.note(self.name, what)

    # What nats-py's client offers

    def new_inbox(self) -> str:
        self._num_inboxes += 1
        return f"_INBOX_jf_sim.{self.name}-{self._num_inboxes}"

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: Headers | None = None,
    ) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        if not self.is_connected:
            self._unsent.append((subject, reply, payload, headers))
            return
        self._send(_kind(subject), self._broker.receive, subject, reply, payload, headers)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        headers: Headers | None = None,
    ) -> Message:
        self._num_inboxes += 1
        inbox = f"{self._mux}.{self._num_inboxes}"
        future = self._requests[inbox] = self._loop.create_future()
        timer = self._loop.call_later(timeout, _expire, future)
        try:
            await self.publish(subject, payload, inbox, headers)
            answer: Message = await future
        finally:
            timer.cancel()
            del self._requests[inbox]
        if answer.headers and answer.headers.get("Status") == "503":
            raise NoRespondersError
        return answer

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: Callable[[Any], Awaitable[None]] | None = None,
        pending_msgs_limit: int = 0,
        pending_bytes_limit: int = 0,
    ) -> Subscription:
        if self.is_closed:
            raise ConnectionClosedError
        assert cb is not None, "only subscriptions with a callback are simulated"
        assert not queue, "queue groups are not simulated"
        self._num_sids += 1
        subscription = Subscription(self, self._num_sids, subject, cb)
        self._subscriptions[subscription.sid] = subscription
        if self.is_connected:
            self._send("core", self._broker.subscribe, self, subscription.sid, subject)
        return subscription

    def send_unsubscribe(self, subscription: Subscription) -> None:
        if self.is_connected:
            self._send(
                "core", self._broker.unsubscribe, self, subscription.sid, subscription.subject
            )

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.sid, None)
        self.send_unsubscribe(subscription)

    async def flush(self) -> None:
        """A round trip."""
        arrived = self._loop.create_future()
        self._send("core", self._pong, arrived)
        async with asyncio.timeout(10):
            await arrived

    def _pong(self, arrived: asyncio.Future[None]) -> None:
        self._to_process(_resolve, arrived)

    # The wire

    def _delay(self) -> float:
        weather, draw = self._weather, self._rng.random
        delay = weather.base_s + draw() * weather.spread_s
        if weather.slow_share and draw() < weather.slow_share:
            delay += draw() * weather.slow_s
        return delay

    def _send(self, kind: str, function: Callable[..., None], *args: Any) -> None:
        """To the server. `kind` is what keeps its order there: publishes to one stream do, and
        calls of the API do, but a call may be answered before an earlier publish is stored.
        """
        if self._loop.is_dead:
            return
        if self._held is not None:
            self._held.append(lambda: self._send(kind, function, *args))
            return
        if self._is_lossy and kind != "core" and self._rng.random() < self._is_lossy:
            return
        arrival = self._world.now + self._delay()
        if arrival < self._sent_until:
            arrival = self._sent_until
        when = self._sent_until = arrival
        if kind != "core":
            when += self._rng.random() * self._weather.spread_s
            handled_until = self._handled_until.get(kind, 0.0)
            if when < handled_until:
                when = handled_until
            self._handled_until[kind] = when
        self._world.at(when, self._arrive, self._life, arrival, function, args)

    def _arrive(
        self, life: int, arrival: float, function: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if self._broker.is_down or (life != self._life and arrival > self._cut_at):
            return
        function(*args)

    def deliver(
        self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None:
        """From the server."""
        self._to_process(self._receive, sid, subject, reply, data, headers)

    def _to_process(self, function: Callable[..., None], *args: Any) -> None:
        if self._held is not None:
            self._held.append(lambda: self._to_process(function, *args))
            return
        if self._is_lossy and self._rng.random() < self._is_lossy:
            return
        when = self._world.now + self._delay()
        if when < self._received_until:
            when = self._received_until
        self._received_until = when
        self._world.at(when, self._come_in, self._life, function, args)

    def _come_in(self, life: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life == self._life and not self._loop.is_dead:
            self._loop.call_soon(function, *args)

    def _receive(
        self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None:
        if sid == 0:
            future = self._requests.get(subject)
            if future is not None and not future.done():
                future.set_result(Message(self, subject, reply, data, headers))
            return
        subscription = self._subscriptions.get(sid)
        if subscription is not None:
            subscription.put(Message(self, subject, reply, data, headers))

    # What happens to it

    def break_off(self) -> None:
        """The connection is reset: some of what was sent still arrives, nothing comes back."""
        if self._loop.is_dead or not self.is_connected:
            return
        self._lose_connection()
        self._loop.call_soon(self._reconnect)

    def _lose_connection(self) -> None:
        self._life += 1
        self._held = None  # lost
        self._cut_at = self._world.now + self._rng.random() * 0.002
        self.is_connected = False
        self._broker.disconnect(self)
        self.on_loss()

    def _reconnect(self) -> None:
        if self.is_closed or self.is_connected:
            return
        if self._broker.is_down:
            self._loop.call_later(_RETRY_S, self._reconnect)
            return
        self.is_connected = True
        self.stats["reconnects"] += 1
        self._broker.subscribe(self, 0, f"{self._mux}.*")
        for subscription in self._subscriptions.values():
            self._send("core", self._broker.subscribe, self, subscription.sid, subscription.subject)
        unsent, self._unsent = self._unsent, []
        for subject, reply, payload, headers in unsent:
            self._send(_kind(subject), self._broker.receive, subject, reply, payload, headers)
        if self.on_reconnect is not None:
            self._loop.create_task(self.on_reconnect())

    def cut(self) -> bool:
        """No packet comes through until `heal`. False when there is no connection to cut."""
        if self._held is not None or not self.is_connected or self._loop.is_dead:
            return False
        self._held = []
        return True

    @property
    def is_cut(self) -> bool:
        return self._held is not None

    def heal(self, *, breaks: bool) -> None:
        """All that waited comes through, or the connection turns out to be dead."""
        held, self._held = self._held, None
        if held is None or self._loop.is_dead:
            return
        if breaks:
            self.break_off()
            return
        for again in held:
            again()

    def lose(self, share: float) -> None:
        """So many of the messages get lost one by one, until it is 0 again."""
        self._is_lossy = share

    def kill(self) -> None:
        """Its process is dead: some of what was sent still arrives."""
        self._lose_connection()
        self.is_closed = True


def _kind(subject: str) -> str:
    if subject.startswith("$JS."):
        return "ack" if subject.startswith("$JS.ACK") else "api"
    first, second = subject.split(".", 2)[:2]
    if first == "$KV":
        return second
    return _STREAM_KINDS.get(second, "core")


def _expire(future: asyncio.Future[Message]) -> None:
    if not future.done():
        future.set_exception(NatsTimeoutError())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
