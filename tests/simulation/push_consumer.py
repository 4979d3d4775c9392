"""An ephemeral push consumer: what `shared.broker.log_reader.LogReader` reads a stream with."""

from __future__ import annotations

from typing import Any

from tests.simulation.pull_consumer import Router
from tests.simulation.stored_stream import StoredMsg, StoredStream, matcher
from tests.simulation.world import EPOCH_S, World


class PushConsumer:
    """Delivers in stream order while somebody listens; heartbeats when it has nothing to say."""

    def __init__(
        self,
        world: World,
        router: Router,
        stream: StoredStream,
        name: str,
        config: dict[str, Any],
    ) -> None:
        self._world = world
        self._router = router
        self._stream = stream
        self.name = name
        self.inbox: str = config["deliver_subject"]
        self._filters: list[str] = config["filter_subjects"]
        self._accept = [matcher(subject) for subject in self._filters]
        self._next_seq: int = config["opt_start_seq"]
        self._heartbeat_s: float = config["idle_heartbeat"] / 1e9
        self._inactive_s: float = config["inactive_threshold"] / 1e9
        self._last_consumer_seq = 0
        self._last_sent_at = world.now
        self._heard_at = world.now  # the last time that somebody listened
        self.is_deleted = False
        stream.on_stored.append(self._on_stored)
        world.after(self._heartbeat_s, self._heartbeat)

    @property
    def num_pending(self) -> int:
        return sum(1 for _ in self._stream.all_from(self._filters, self._next_seq))

    @property
    def num_delivered(self) -> int:
        return self._last_consumer_seq

    def delete(self) -> None:
        if not self.is_deleted:
            self.is_deleted = True
            self._stream.on_stored.remove(self._on_stored)

    def serve(self) -> None:
        """Deliver everything there is."""
        if self.is_deleted or not self._router.has_interest(self.inbox):
            return
        waiting = list(self._stream.all_from(self._filters, self._next_seq))
        for idx, msg in enumerate(waiting):
            self._deliver(msg, len(waiting) - 1 - idx)

    def _on_stored(self, msg: StoredMsg) -> None:
        if msg.seq < self._next_seq or not any(accepts(msg.subject) for accepts in self._accept):
            return
        self.serve()

    def _deliver(self, msg: StoredMsg, num_pending: int) -> None:
        self._next_seq = msg.seq + 1
        self._last_consumer_seq += 1
        self._last_sent_at = self._world.now
        stored_ns = int((EPOCH_S + msg.at) * 1e9)
        reply = (
            f"$JS.ACK.{self._stream.name}.{self.name}.1.{msg.seq}."
            f"{self._last_consumer_seq}.{stored_ns}.{num_pending}"
        )
        self._router.deliver(self.inbox, msg.subject, reply, msg.data, msg.headers)

    def _heartbeat(self) -> None:
        if self.is_deleted:
            return
        now = self._world.now
        if not self._router.has_interest(self.inbox):
            if now - self._heard_at > self._inactive_s:
                self.delete()
                return
        else:
            self._heard_at = now
            if now - self._last_sent_at >= self._heartbeat_s:
                self._last_sent_at = now
                headers = {
                    "Status": "100",
                    "Description": "Idle Heartbeat",
                    "Nats-Last-Consumer": str(self._last_consumer_seq),
                    "Nats-Last-Stream": str(self._next_seq - 1),
                }
                self._router.deliver(self.inbox, self.inbox, "", b"", headers)
        self._world.after(self._heartbeat_s, self._heartbeat)
