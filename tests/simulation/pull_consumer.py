"""A durable pull consumer of a work queue: deliveries, ack waits, naks with a delay, pulls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from tests.simulation.stored_stream import Headers, StoredMsg, StoredStream, matcher
from tests.simulation.world import EPOCH_S, World


class Router(Protocol):
    """How a consumer reaches its clients."""

    def has_interest(self, subject: str) -> bool: ...

    def deliver(
        self, to: str, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None: ...


@dataclass(slots=True, eq=False)
class _Pull:
    inbox: str
    num_left: int
    expires_at: float
    heartbeat_s: float
    last_sent_at: float
    is_over: bool = False


@dataclass(slots=True)
class _Pending:
    consumer_seq: int
    due_at: float


class PullConsumer:
    """Explicit acks, no limit of deliveries. An ack removes, whoever sends it: none is fenced."""

    def __init__(
        self, world: World, router: Router, stream: StoredStream, config: dict[str, Any]
    ) -> None:
        self._world = world
        self._router = router
        self._stream = stream
        self.name: str = config["durable_name"]
        self._filter: str = config["filter_subject"]
        self._accepts = matcher(self._filter)
        self._ack_wait_s: float = config["ack_wait"] / 1e9
        self._pulls: deque[_Pull] = deque()
        self._pending: dict[int, _Pending] = {}
        self._num_delivered: dict[int, int] = {}
        self._redeliver: deque[int] = deque()
        self._next_seq = 1
        self._last_consumer_seq = 0
        stream.on_stored.append(self._on_stored)

    # Pulling

    def pull(self, inbox: str, query: dict[str, Any]) -> None:
        now = self._world.now
        batch = int(query.get("batch", 1))
        if query.get("no_wait"):
            num_ready = self._num_ready()
            if not num_ready:
                self._status(inbox, "404", "No Messages")
                return
            batch = min(batch, num_ready)
        expires_s = query.get("expires", 0) / 1e9
        heartbeat_s = query.get("idle_heartbeat", 0) / 1e9
        pull = _Pull(inbox, batch, now + expires_s if expires_s else 1e18, heartbeat_s, now)
        self._pulls.append(pull)
        if expires_s:
            self._world.at(pull.expires_at, self._expire_pull, pull)
        if heartbeat_s:
            self._world.after(heartbeat_s, self._heartbeat, pull)
        self._serve()

    def _num_ready(self) -> int:
        new = sum(1 for _ in self._stream.all_from([self._filter], self._next_seq))
        return new + sum(seq in self._stream.messages for seq in self._redeliver)

    def _expire_pull(self, pull: _Pull) -> None:
        if not pull.is_over:
            self._end(pull)
            self._status(pull.inbox, "408", "Request Timeout")

    def _heartbeat(self, pull: _Pull) -> None:
        if pull.is_over:
            return
        if self._world.now - pull.last_sent_at >= pull.heartbeat_s - 1e-6:
            self._status(pull.inbox, "100", "Idle Heartbeat")
            pull.last_sent_at = self._world.now
        self._world.at(pull.last_sent_at + pull.heartbeat_s, self._heartbeat, pull)

    def _end(self, pull: _Pull) -> None:
        pull.is_over = True
        if pull in self._pulls:
            self._pulls.remove(pull)

    def _status(self, inbox: str, status: str, description: str) -> None:
        headers = {"Status": status, "Description": description}
        self._router.deliver(inbox, inbox, "", b"", headers)

    # Delivering

    def _on_stored(self, msg: StoredMsg) -> None:
        if self._accepts(msg.subject):
            self._serve()

    def _serve(self) -> None:
        while self._pulls:
            msg = self._next_msg()
            if msg is None:
                return
            while self._pulls and not self._router.has_interest(self._pulls[0].inbox):
                self._end(self._pulls[0])
            if not self._pulls:
                self._redeliver.appendleft(msg.seq)  # it was taken, and nobody wants it
                return
            self._deliver(msg, self._pulls[0])

    def _next_msg(self) -> StoredMsg | None:
        while self._redeliver:
            seq = self._redeliver.popleft()
            if seq in self._stream.messages:
                return self._stream.messages[seq]
        msg = self._stream.first_from(self._filter, self._next_seq)
        if msg is not None:
            self._next_seq = msg.seq + 1
        return msg

    def _deliver(self, msg: StoredMsg, pull: _Pull) -> None:
        now = self._world.now
        self._last_consumer_seq += 1
        count = self._num_delivered[msg.seq] = self._num_delivered.get(msg.seq, 0) + 1
        self._wait_for_ack(msg.seq, self._last_consumer_seq, now + self._ack_wait_s)
        stored_ns = int((EPOCH_S + msg.at) * 1e9)
        reply = (
            f"$JS.ACK.{self._stream.name}.{self.name}.{count}.{msg.seq}."
            f"{self._last_consumer_seq}.{stored_ns}.0"
        )
        pull.last_sent_at = now
        pull.num_left -= 1
        self._pulls.popleft()
        if pull.num_left:
            self._pulls.append(pull)  # the server goes round
        else:
            pull.is_over = True
        self._router.deliver(pull.inbox, msg.subject, reply, msg.data, msg.headers)

    def _wait_for_ack(self, seq: int, consumer_seq: int, due_at: float) -> None:
        self._pending[seq] = _Pending(consumer_seq, due_at)
        self._world.at(due_at, self._check, seq)

    def _check(self, seq: int) -> None:
        pending = self._pending.get(seq)
        if pending is not None and pending.due_at <= self._world.now:
            self._queue_again(seq)

    def _queue_again(self, seq: int) -> None:
        if seq not in self._redeliver:
            self._redeliver.append(seq)
            self._serve()

    # Acknowledgements

    @property
    def ack_floor(self) -> int:
        """All messages up to this sequence are acknowledged."""
        return min([self._next_seq, *self._pending, *self._redeliver]) - 1

    def info(self) -> dict[str, Any]:
        """What the server tells of it."""
        return {
            "num_pending": sum(1 for _ in self._stream.all_from([self._filter], self._next_seq)),
            "num_ack_pending": sum(seq in self._stream.messages for seq in self._pending),
            "ack_floor": {"stream_seq": self.ack_floor},
        }

    def on_ack(self, seq: int, consumer_seq: int, payload: bytes) -> None:
        if payload in (b"", b"+ACK") or payload.startswith(b"+TERM"):
            self._acknowledge(seq)
        elif payload.startswith(b"-NAK"):
            self._give_back(seq, consumer_seq, payload[4:].strip())
        elif payload.startswith(b"+WPI") and seq in self._pending:
            pending = self._pending[seq]
            self._wait_for_ack(seq, pending.consumer_seq, self._world.now + self._ack_wait_s)

    def _acknowledge(self, seq: int) -> None:
        self.forget(seq)
        self._stream.remove(seq)

    def forget(self, seq: int) -> None:
        """The message is gone from the stream: nobody is waited for."""
        self._pending.pop(seq, None)
        self._num_delivered.pop(seq, None)
        if seq in self._redeliver:
            self._redeliver.remove(seq)

    def _give_back(self, seq: int, consumer_seq: int, options: bytes) -> None:
        if consumer_seq > self._last_consumer_seq or seq not in self._pending:
            return  # of an earlier life of the server, or of what is acknowledged
        delay_s = msgspec.json.decode(options)["delay"] / 1e9 if options else 0.0
        if delay_s:
            self._wait_for_ack(seq, self._pending[seq].consumer_seq, self._world.now + delay_s)
        else:
            self._queue_again(seq)

    # Restarting

    def restart(self, *, forgets: bool) -> None:
        """Pulls are gone with their connections. After kill -9 deliveries may be forgotten too."""
        for pull in self._pulls:
            pull.is_over = True
        self._pulls.clear()
        if forgets:
            self._pending.clear()
            self._num_delivered.clear()
            self._redeliver.clear()
            self._next_seq = 1
            self._last_consumer_seq = 0
