"""Finds a group of requests that some frontend accepted: running, finished or still queued."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from frontend.detok_client import DetokClient
from shared.cluster import Cluster
from shared.codec import decode
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    NotFound,
    ProtocolError,
    ServiceUnavailable,
)
from shared.protocol.reply import ReplyParams
from shared.protocol.request import GenerateRequest
from shared.protocol.text import ReplayReply, ReplayStatus, TextChunk
from shared.subjects import choice_rid, is_rid

_ATTEMPTS = 5
_RETRY_S = 0.5
_SCAN_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class FoundChoice:
    """One request of the group, and its text so far."""

    rid: str
    reply: ReplyParams
    chunk: TextChunk | None  # from offset 0; None while it is queued


class StreamFinder:
    """Asks the detokenizers, and looks into the queue for what they have not seen yet."""

    def __init__(self, cluster: Cluster, detok: DetokClient) -> None:
        self._cluster = cluster
        self._detok = detok
        self._scans = asyncio.Semaphore(2)  # reading the whole queue is dear

    async def find(self, group_id: str, owner: str) -> list[FoundChoice]:
        """All choices of a group, in order.

        Raises NotFound, also when the group belongs to another API key, or ServiceUnavailable.
        """
        if not is_rid(group_id):
            raise _unknown(group_id)
        first = await self._first_reply(group_id)
        if first is None or first.group_id != group_id or first.owner != owner:
            raise _unknown(group_id)
        rids = [choice_rid(group_id, i, first.num_choices) for i in range(first.num_choices)]
        replies = await asyncio.gather(*(self._replay(rid) for rid in rids))
        queued: dict[str, ReplyParams] = {}
        if any(reply.reply is None for reply in replies):
            queued = await self._queued(group_id)
        found = []
        for rid, answer in zip(rids, replies, strict=True):
            reply = answer.reply or queued.get(rid)
            if reply is None:  # claimed between the two looks: ask again
                answer = await self._replay(rid)
                reply = answer.reply
            if reply is None:
                raise _unknown(group_id)
            found.append(FoundChoice(rid, reply, answer.chunk))
        return found

    async def _first_reply(self, group_id: str) -> ReplyParams | None:
        """Of a choice of the group: the group id is the rid when there is only one choice."""
        for _ in range(2):  # again, for one that was taken from the queue between the two looks
            for rid in (group_id, choice_rid(group_id, 0, 2)):
                answer = await self._replay(rid)
                if answer.reply is not None:
                    return answer.reply
            for reply in (await self._queued(group_id)).values():
                return reply
        return None

    async def _replay(self, rid: str) -> ReplayReply:
        for attempt in range(_ATTEMPTS):
            try:
                return await self._detok.replay(rid, 0)
            except ProtocolError as exc:
                raise ServiceUnavailable(f"The detokenizer's answer cannot be read: {exc}") from exc
            except BrokerUnavailable as exc:
                if attempt == _ATTEMPTS - 1:
                    raise ServiceUnavailable("No detokenizer answers now.") from exc
                await asyncio.sleep(_RETRY_S)
        return ReplayReply(ReplayStatus.QUEUED)

    async def _queued(self, group_id: str) -> dict[str, ReplyParams]:
        """Requests of the group that are in the queue, by rid."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._scan(group_id)
            except BrokerError:
                await asyncio.sleep(_SCAN_RETRY_S)
        raise ServiceUnavailable("The queue cannot be read now.")

    async def _scan(self, group_id: str) -> dict[str, ReplyParams]:
        """Raises BrokerError."""
        found: dict[str, ReplyParams] = {}
        needle = group_id.encode()
        subjects = self._cluster.subjects
        async with self._scans:
            async for message in self._cluster.js.proven_scan(
                subjects.requests_stream, subjects.request("*", "*")
            ):
                if needle not in message.data:
                    continue
                with contextlib.suppress(ProtocolError):  # somebody else's words in the queue
                    request = decode(GenerateRequest, message.data)
                    if request.reply.group_id == group_id:
                        found[request.rid] = request.reply
        return found


def _unknown(group_id: str) -> NotFound:
    return NotFound(
        f"No stream {group_id[:64]!r} is known: it may be too old, or belong to another API key.",
        code="stream_not_found",
    )
