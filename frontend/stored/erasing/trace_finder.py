"""Finds what is stored of the requests of a group, or of a tenant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from shared.broker.jetstream import StoredMessage
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.protocol.dead import DeadRequest
from shared.protocol.request import GenerateRequest
from shared.subjects import choice_rid, rid_of

_POISON = b"poison"  # in the end of a request that was given up, and kept
_MAX_SCANS = 2  # reading a whole stream is dear


class TracedReply(msgspec.Struct, frozen=True):
    """A part of reply data, whoever wrote it."""

    owner: str = ""
    group_id: str = ""
    num_choices: int = 1
    is_shared: bool = False  # it has an idempotency key


class TracedRecord(msgspec.Struct, frozen=True):
    """A claim, an end, a result, a kept response or a request, of any version."""

    reply: TracedReply | None = None
    rid: str = ""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A message in the queue."""

    seq: int
    request: GenerateRequest


@dataclass(slots=True)
class Trace:
    """One request, and where it was found beside the subjects that bear its id."""

    rid: str
    reply: TracedReply
    queued: list[QueuedRequest] = field(default_factory=list)
    dead_seqs: list[int] = field(default_factory=list)


class TraceFinder:
    """All reads are leader reads, or proven to hold what the leader held."""

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._subjects = cluster.subjects
        self._scans = asyncio.Semaphore(_MAX_SCANS)

    async def of_group(self, group_id: str) -> list[Trace]:
        """Every choice of a group of which anything is left; none when nothing is.

        Raises BrokerError.
        """
        traces: dict[str, Trace] = {}
        first, may_be_dead = None, False
        async for message in self._records(group_id):
            may_be_dead = may_be_dead or _POISON in message.data
            first = first or _read(message.data).reply
        if first is None or may_be_dead:
            async with self._scans:
                first = await self._add_dead(traces, group_id) or first
        if first is None:
            return []
        num_choices = first.num_choices if first.group_id == group_id else 1
        for idx in range(num_choices):
            rid = group_id if idx == 0 else choice_rid(group_id, idx)
            trace = traces.setdefault(rid, Trace(rid, first))
            queued = await self._js.get_last(
                self._subjects.requests_stream, self._subjects.request_by_rid(rid)
            )
            if queued is not None:
                trace.queued.append(QueuedRequest(queued.seq, decode(GenerateRequest, queued.data)))
        return list(traces.values())

    async def of_owner(self, owner: str) -> dict[str, Trace]:
        """Every request of a tenant, by its id. Reads all streams. Raises BrokerError."""
        traces: dict[str, Trace] = {}
        subjects = self._subjects
        async for queued, reply in self._queued():
            if reply.owner == owner:
                rid = queued.request.rid
                traces.setdefault(rid, Trace(rid, reply)).queued.append(queued)
        for stream, pattern in (
            (subjects.tokens_stream, f"{subjects.prefix}.own.*.*"),
            (subjects.results_stream, subjects.done("*")),
            (subjects.responses_stream, subjects.response("*")),
        ):
            async for message in self._js.proven_scan(stream, pattern):
                found = _read(message.data).reply
                if found is not None and found.owner == owner:
                    rid = rid_of(message.subject)
                    traces.setdefault(rid, Trace(rid, found))
        async for seq, rid, reply in self._dead():
            if reply.owner == owner:
                traces.setdefault(rid, Trace(rid, reply)).dead_seqs.append(seq)
        return traces

    async def has_result(self, rid: str) -> bool:
        """Raises BrokerError."""
        subjects = self._subjects
        return await self._js.get_last(subjects.results_stream, subjects.done(rid)) is not None

    async def _records(self, rid: str) -> AsyncIterator[StoredMessage]:
        """What stands under subjects that bear the id."""
        subjects = self._subjects
        for stream, subject in (
            (subjects.requests_stream, subjects.request_by_rid(rid)),
            (subjects.tokens_stream, subjects.ownership(rid)),
            (subjects.results_stream, subjects.done(rid)),
            (subjects.responses_stream, subjects.response(rid)),
        ):
            seq = 1
            while (message := await self._js.get_next(stream, subject, seq)) is not None:
                yield message
                seq = message.seq + 1

    async def _queued(self) -> AsyncIterator[tuple[QueuedRequest, TracedReply]]:
        subjects = self._subjects
        async for message in self._js.proven_scan(
            subjects.requests_stream, subjects.requests("*", "*")
        ):
            with contextlib.suppress(ProtocolError):  # somebody else's words in the queue
                request = decode(GenerateRequest, message.data)
                reply = _read(message.data).reply
                if reply is not None:
                    yield QueuedRequest(message.seq, request), reply

    async def _add_dead(self, traces: dict[str, Trace], group_id: str) -> TracedReply | None:
        first = None
        async for seq, rid, reply in self._dead():
            if group_id in (rid, reply.group_id):
                first = reply
                traces.setdefault(rid, Trace(rid, reply)).dead_seqs.append(seq)
        return first

    async def _dead(self) -> AsyncIterator[tuple[int, str, TracedReply]]:
        """Those too large to be kept hold nothing that anybody wrote."""
        subjects = self._subjects
        async for message in self._js.proven_scan(subjects.dead_stream, subjects.dead("*")):
            with contextlib.suppress(ProtocolError):
                dead = decode(DeadRequest, message.data)
                reply = _read(dead.request).reply
                if reply is not None:
                    yield message.seq, dead.rid, reply


def _read(data: bytes) -> TracedRecord:
    """What cannot be read tells nothing."""
    with contextlib.suppress(ProtocolError):
        return decode(TracedRecord, data)
    return TracedRecord()
