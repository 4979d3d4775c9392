"""A nats-server as far as the protocol uses one: core subjects, and JetStream behind its API."""

from __future__ import annotations

import base64
import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tests.simulation.pull_consumer import PullConsumer
from tests.simulation.push_consumer import PushConsumer
from tests.simulation.stored_stream import Headers, StoredStream, is_pattern, matcher
from tests.simulation.world import EPOCH_S, World

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_ERR_NO_MESSAGE = {"code": 404, "err_code": 10037, "description": "no message found"}
_ERR_NOT_DELETED = {"code": 400, "err_code": 10057, "description": "no message found"}
_ERR_NO_STREAM = {"code": 404, "err_code": 10059, "description": "stream not found"}
_ERR_NO_CONSUMER = {"code": 404, "err_code": 10014, "description": "consumer not found"}


class Listener(Protocol):
    """A connection, seen from the server."""

    def deliver(
        self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None: ...


class Broker:
    """All state of the server. Connections call it when what they sent has arrived."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.streams: dict[str, StoredStream] = {}
        self._stream_of: dict[str, StoredStream | None] = {}
        self._pull_consumers: dict[tuple[str, str], PullConsumer] = {}
        self._push_consumers: dict[str, PushConsumer] = {}
        self._exact: dict[str, list[tuple[Listener, int]]] = {}
        # By the first two tokens, which no pattern of ours leaves open.
        self._patterns: dict[str, list[tuple[Callable[[str], Any], Listener, int]]] = {}
        self._num_consumers = 0
        self.num_messages = 0
        self.is_down = False

    # Making

    def create_stream(self, config: dict[str, Any]) -> None:
        created = f"2027-01-15T08:00:00.{len(self.streams):06d}Z"
        self.streams[config["name"]] = StoredStream(config, created)
        self._stream_of.clear()

    def create_durable(self, stream: str, config: dict[str, Any]) -> None:
        key = (stream, config["durable_name"])
        if key not in self._pull_consumers:
            consumer = PullConsumer(self._world, self, self.streams[stream], config)
            self._pull_consumers[key] = consumer

    # Connections

    def subscribe(self, listener: Listener, sid: int, subject: str) -> None:
        if is_pattern(subject):
            entry = (matcher(subject), listener, sid)
            self._patterns.setdefault(_head(subject), []).append(entry)
            return
        self._exact.setdefault(subject, []).append((listener, sid))
        for consumer in list(self._push_consumers.values()):
            if consumer.inbox == subject:
                consumer.serve()

    def unsubscribe(self, listener: Listener, sid: int, subject: str) -> None:
        if is_pattern(subject):
            entries = self._patterns.get(_head(subject), [])
            entries[:] = [e for e in entries if e[1] is not listener or e[2] != sid]
            return
        listeners = self._exact.get(subject)
        if listeners and (listener, sid) in listeners:
            listeners.remove((listener, sid))
            if not listeners:
                del self._exact[subject]

    def disconnect(self, listener: Listener) -> None:
        """Its connection is gone, and all its interest with it."""
        for subject, listeners in list(self._exact.items()):
            listeners[:] = [entry for entry in listeners if entry[0] is not listener]
            if not listeners:
                del self._exact[subject]
        for entries in self._patterns.values():
            entries[:] = [entry for entry in entries if entry[1] is not listener]

    def _listeners(self, subject: str) -> list[tuple[Listener, int]]:
        found = self._exact.get(subject, [])
        patterns = self._patterns.get(_head(subject))
        if patterns:
            found = found + [
                (listener, sid) for accepts, listener, sid in patterns if accepts(subject)
            ]
        return found

    def has_interest(self, subject: str) -> bool:
        return bool(self._listeners(subject))

    def deliver(
        self, to: str, subject: str, reply: str, data: bytes, headers: Headers | None
    ) -> None:
        """To whoever listens on `to`; the message bears `subject`."""
        for listener, sid in self._listeners(to):
            listener.deliver(sid, subject, reply, data, headers)

    # Messages

    def receive(self, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        """A published message has arrived."""
        self.num_messages += 1
        if subject.startswith("$JS."):
            answer = self._on_jetstream(subject, reply, data)
            if answer is not None and reply:
                self.deliver(reply, reply, "", answer, None)
            return
        listeners = self._listeners(subject)
        for listener, sid in listeners:
            listener.deliver(sid, subject, reply, data, headers)
        stream = self.stream_of(subject)
        if stream is not None:
            ack = stream.store(subject, data, headers, self._world.now)
            if reply:
                self.deliver(reply, reply, "", _encode(ack), None)
        elif reply and not listeners:
            self.deliver(reply, reply, "", b"", {"Status": "503"})

    def stream_of(self, subject: str) -> StoredStream | None:
        """The stream that captures a subject."""
        if subject not in self._stream_of:
            self._stream_of[subject] = next(
                (
                    stream
                    for stream in self.streams.values()
                    if any(matcher(pattern)(subject) for pattern in stream.subjects)
                ),
                None,
            )
        return self._stream_of[subject]

    def _on_jetstream(self, subject: str, reply: str, data: bytes) -> bytes | None:
        tokens = subject.split(".")
        if tokens[1] == "ACK":
            consumer = self._pull_consumers.get((tokens[2], tokens[3]))
            if consumer is not None:
                consumer.on_ack(int(tokens[5]), int(tokens[6]), data)
            return b""
        match tokens[2:]:
            case ["STREAM", "MSG", "GET", name]:
                return self._msg_get(name, _decode(data))
            case ["DIRECT", "GET", name]:
                self._direct_get(name, _decode(data), reply)
                return None
            case ["CONSUMER", "MSG", "NEXT", name, consumer_name]:
                self._pull_consumers[name, consumer_name].pull(reply, _decode(data))
                return None
            case ["STREAM", "PURGE", name]:
                query = _decode(data)
                num_purged = self.streams[name].purge(query["filter"], query.get("seq"))
                return _encode({"success": True, "purged": num_purged})
            case ["STREAM", "MSG", "DELETE", name]:
                return self._msg_delete(name, _decode(data)["seq"])
            case ["CONSUMER", "CREATE", name]:
                return self._create_push(name, _decode(data)["config"])
            case ["CONSUMER", "INFO", name, consumer_name]:
                return _encode(self._pull_consumers[name, consumer_name].info())
            case ["CONSUMER", "DELETE", _, consumer_name]:
                return self._delete_push(consumer_name)
            case ["CONSUMER", "DURABLE", "CREATE", name, _]:
                self.create_durable(name, _decode(data)["config"])
                return _encode({"stream_name": name})
            case ["STREAM", "CREATE", _]:
                self.create_stream(_decode(data))
                return _encode({})
            case ["STREAM", "INFO", name]:
                query = _decode(data) if data else {}
                return self._stream_info(name, query.get("subjects_filter", ""))
        raise NotImplementedError(f"the simulated broker knows no {subject}")

    def _msg_get(self, name: str, query: dict[str, Any]) -> bytes:
        stream = self.streams[name]
        stream.expire(self._world.now)
        if "last_by_subj" in query:
            msg = stream.last_msg(query["last_by_subj"])
        elif "next_by_subj" in query:
            msg = stream.first_from(query["next_by_subj"], query["seq"])
        else:
            msg = stream.messages.get(query["seq"])
        if msg is None:
            return _encode({"error": _ERR_NO_MESSAGE})
        data = base64.b64encode(msg.data).decode()
        return _encode(
            {
                "message": {
                    "subject": msg.subject,
                    "seq": msg.seq,
                    "data": data,
                    "time": _time_text(msg.at),
                }
            }
        )

    def _msg_delete(self, name: str, seq: int) -> bytes:
        if not self.streams[name].remove(seq):
            return _encode({"error": _ERR_NOT_DELETED})
        for (stream, _), consumer in self._pull_consumers.items():
            if stream == name:
                consumer.forget(seq)
        return _encode({"success": True})

    def _direct_get(self, name: str, query: dict[str, Any], inbox: str) -> None:
        stream = self.streams[name]
        stream.expire(self._world.now)
        found = list(stream.all_from([query["next_by_subj"]], query["seq"]))
        last_seq = 0
        for msg in found[: query["batch"]]:
            headers = {
                "Nats-Stream": name,
                "Nats-Subject": msg.subject,
                "Nats-Sequence": str(msg.seq),
                "Nats-Time-Stamp": _time_text(msg.at),
                "Nats-Last-Sequence": str(last_seq),
            }
            self.deliver(inbox, inbox, "", msg.data, headers)
            last_seq = msg.seq
        status = {"Status": "204", "Description": "EOB", "Nats-Last-Sequence": str(last_seq)}
        if not found:
            status = {"Status": "404", "Description": "Message Not Found"}
        self.deliver(inbox, inbox, "", b"", status)

    def _create_push(self, name: str, config: dict[str, Any]) -> bytes:
        self._num_consumers += 1
        consumer_name = f"c{self._num_consumers}"
        consumer = PushConsumer(self._world, self, self.streams[name], consumer_name, config)
        self._push_consumers[consumer_name] = consumer
        num_pending = consumer.num_pending
        consumer.serve()
        answer = {
            "name": consumer_name,
            "num_pending": num_pending,
            "delivered": {"consumer_seq": 0, "stream_seq": 0},
        }
        return _encode(answer)

    def _delete_push(self, name: str) -> bytes:
        consumer = self._push_consumers.pop(name, None)
        if consumer is None:
            return _encode({"error": _ERR_NO_CONSUMER})
        consumer.delete()
        return _encode({"success": True})

    def _stream_info(self, name: str, subjects_filter: str) -> bytes:
        stream = self.streams.get(name)
        if stream is None:
            return _encode({"error": _ERR_NO_STREAM})
        stream.expire(self._world.now)
        state: dict[str, Any] = {
            "messages": len(stream.messages),
            "bytes": sum(len(msg.data) for msg in stream.messages.values()),
            "last_seq": stream.last_seq,
            "last_ts": _time_text(stream.last_at),
        }
        if subjects_filter:
            found = stream.all_from([subjects_filter], 1)
            state["subjects"] = dict(Counter(msg.subject for msg in found))
        return _encode(
            {
                "config": stream.config,
                "created": stream.created,
                "state": state,
                "ts": _time_text(self._world.now),
            }
        )

    # Dying

    def go_down(self) -> None:
        """kill -9: whoever is connected must break its connection too."""
        self.is_down = True
        self._exact.clear()
        self._patterns.clear()

    def come_up(self, *, forgets: bool) -> None:
        """Restarted on its store. Consumers in memory are gone; deliveries may be forgotten."""
        self.is_down = False
        for consumer in self._push_consumers.values():
            consumer.delete()
        self._push_consumers.clear()
        for stream in self.streams.values():
            stream.restart()
        for durable in self._pull_consumers.values():
            durable.restart(forgets=forgets)


def _head(subject: str) -> str:
    end = subject.find(".", subject.find(".") + 1)
    return subject if end < 0 else subject[:end]


def _time_text(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(EPOCH_S + at, datetime.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
