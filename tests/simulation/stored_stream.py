"""A JetStream stream: messages by sequence, compare-and-set, de-duplication, expiry."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shared.broker.jetstream import (
    ERR_STORE_FAILED,
    ERR_WRONG_LAST_SEQUENCE,
    HEADER_EXPECTED_LAST,
    HEADER_MSG_ID,
)

Headers = dict[str, str]


def matcher(pattern: str) -> Callable[[str], bool]:
    """What is true of the subjects that fall under a pattern with `*` and `>`."""
    if not is_pattern(pattern):
        return pattern.__eq__
    head, _, last = pattern.rpartition(".")
    if not head or is_pattern(head):
        return functools.partial(_falls_under, pattern.split("."))
    start, length = f"{head}.", len(head) + 1
    if last == ">":
        return lambda subject: subject.startswith(start)
    return lambda subject: subject.startswith(start) and subject.find(".", length) < 0


def _falls_under(wanted: list[str], subject: str) -> bool:
    tokens = subject.split(".")
    for idx, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > idx
        if idx >= len(tokens) or (token != "*" and token != tokens[idx]):
            return False
    return len(wanted) == len(tokens)


def is_pattern(subject: str) -> bool:
    """Whether it stands for many subjects."""
    return "*" in subject or ">" in subject


@dataclass(slots=True)
class StoredMsg:
    """A message with its place and the time of storing it, in seconds of simulated time."""

    subject: str
    seq: int
    data: bytes
    headers: Headers | None
    at: float


class StoredStream:
    """One stream. `on_stored` hears of every new message; nothing here survives by itself a
    restart of the broker but what `restart` leaves.
    """

    def __init__(self, config: dict[str, Any], created: str) -> None:
        self.config = config
        self.name: str = config["name"]
        self.created = created
        self.subjects: list[str] = config["subjects"]
        self.is_work_queue = config["retention"] == "workqueue"
        self._max_age_s = config.get("max_age", 0) / 1e9
        self._max_msgs: int = config.get("max_msgs", 0)
        self._max_per_subject: int = config.get("max_msgs_per_subject", 0)
        self._refuses_per_subject: bool = config.get("discard_new_per_subject", False)
        self._window_s: float = config["duplicate_window"] / 1e9
        self.messages: dict[int, StoredMsg] = {}
        self._by_subject: dict[str, list[int]] = {}
        self._ids: dict[str, tuple[float, int]] = {}
        self.last_seq = 0
        self.last_at = 0.0  # when that was stored
        self.on_stored: list[Callable[[StoredMsg], None]] = []
        self.on_removed: Callable[[StoredMsg], None] | None = None

    def store(
        self, subject: str, data: bytes, headers: Headers | None, now: float
    ) -> dict[str, Any]:
        """The body of the publish acknowledgement."""
        self.expire(now)
        msg_id = None
        if headers is not None:
            msg_id = headers.get(HEADER_MSG_ID)
            if msg_id is not None and msg_id in self._ids:
                at, seq = self._ids[msg_id]
                if now - at < self._window_s:
                    return {"stream": self.name, "seq": seq, "duplicate": True}
            expected = headers.get(HEADER_EXPECTED_LAST)
            if expected is not None and int(expected) != self.last_of(subject):
                last = self.last_of(subject)
                return self._refusal(ERR_WRONG_LAST_SEQUENCE, f"wrong last sequence: {last}")
        is_taken = 0 < self._max_per_subject <= len(self._by_subject.get(subject, ()))
        if is_taken and self._refuses_per_subject:
            return self._refusal(ERR_STORE_FAILED, "maximum messages per subject exceeded")
        if 0 < self._max_msgs <= len(self.messages):
            return self._refusal(ERR_STORE_FAILED, "maximum messages exceeded")
        self.last_seq, self.last_at = self.last_seq + 1, now
        msg = StoredMsg(subject, self.last_seq, data, headers, now)
        seqs = self._by_subject.setdefault(subject, [])
        if is_taken:
            self.messages.pop(seqs.pop(0))
        self.messages[msg.seq] = msg
        seqs.append(msg.seq)
        if msg_id is not None:
            self._ids[msg_id] = (now, msg.seq)
        for listener in list(self.on_stored):
            listener(msg)
        return {"stream": self.name, "seq": msg.seq}

    def _refusal(self, err_code: int, description: str) -> dict[str, Any]:
        error = {"code": 400, "err_code": err_code, "description": description}
        return {"error": error, "stream": self.name, "seq": 0}

    def last_of(self, subject: str) -> int:
        """0 when the subject is empty."""
        seqs = self._by_subject.get(subject)
        return seqs[-1] if seqs else 0

    def last_msg(self, pattern: str) -> StoredMsg | None:
        """The last message of a subject or pattern."""
        if is_pattern(pattern):
            return max(self.all_from([pattern], 1), key=lambda msg: msg.seq, default=None)
        return self.messages.get(self.last_of(pattern))

    def first_from(self, pattern: str, seq: int) -> StoredMsg | None:
        """The first message at `seq` or later."""
        if is_pattern(pattern):
            return next(self.all_from([pattern], seq), None)
        seqs = self._by_subject.get(pattern, [])
        idx = bisect_left(seqs, seq)
        return self.messages[seqs[idx]] if idx < len(seqs) else None

    def all_from(self, patterns: list[str], seq: int) -> Iterator[StoredMsg]:
        if seq > self.last_seq:
            return
        accept = [matcher(pattern) for pattern in patterns]
        for msg in list(self.messages.values()):
            if msg.seq >= seq and any(accepts(msg.subject) for accepts in accept):
                yield msg

    def remove(self, seq: int) -> bool:
        msg = self.messages.pop(seq, None)
        if msg is None:
            return False
        self._by_subject[msg.subject].remove(seq)
        if self.on_removed is not None:
            self.on_removed(msg)
        return True

    def purge(self, pattern: str, before_seq: int | None = None) -> int:
        accepts = matcher(pattern)
        doomed = [
            msg.seq
            for msg in self.messages.values()
            if accepts(msg.subject) and (before_seq is None or msg.seq < before_seq)
        ]
        for seq in doomed:
            self.remove(seq)
        return len(doomed)

    def expire(self, now: float) -> None:
        if not self._max_age_s:
            return
        while self.messages:
            first = next(iter(self.messages.values()))
            if first.at + self._max_age_s > now:
                return
            self.remove(first.seq)

    def restart(self) -> None:
        """After kill -9 of the server: only messages that are still here are known by their id."""
        self._ids = {
            msg.headers[HEADER_MSG_ID]: (msg.at, msg.seq)
            for msg in self.messages.values()
            if msg.headers and HEADER_MSG_ID in msg.headers
        }
