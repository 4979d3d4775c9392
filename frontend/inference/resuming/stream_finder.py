"""Finds a group of requests that some frontend accepted: running, finished or still queued."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from frontend.parsers.answer_parsers import AnswerParsers
from frontend.streams.detok_client import DetokClient
from shared.broker.piece_chain import PieceChain
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    ProtocolError,
    ServiceUnavailable,
    StreamNotFound,
)
from shared.protocol.codec import decode
from shared.protocol.log_records import OwnershipRecord, Release
from shared.protocol.reply import ReplyParams, SealedReply
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import Done, ReplayReply, ReplayStatus, TextChunk, done_chunk
from shared.subjects import choice_rid, is_rid

_ATTEMPTS = 5
_RETRY_S = 0.5
_READ_RETRY_S = 0.1
_MAX_LOOKS = 64  # at once: a group may have thousands of requests

T = TypeVar("T")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class KnownChoice:
    """One request of the group."""

    rid: str
    reply: ReplyParams
    done: Done | None = None  # its result, if that is stored
    age_s: float = 0.0  # since it was queued, at least; of one that is not over
    is_read_here: bool = False  # what comes is heard already, and what is missing asked for

    @property
    def is_over(self) -> bool:
        return self.done is not None


@dataclass(frozen=True, slots=True)
class FoundChoice:
    """One request of the group, and its text so far."""

    rid: str
    reply: ReplyParams
    chunk: TextChunk | None  # from offset 0; None while it is queued


class StreamFinder:
    """Looks for each request by its id: in the queue, where it stands from its acceptance to its
    end, then among the results and in the log. What is in none of them is unknown: nobody is asked
    for it, and nothing is kept of it.
    """

    def __init__(self, cluster: Cluster, detok: DetokClient) -> None:
        self._cluster = cluster
        self._detok = detok
        self._looks = asyncio.Semaphore(_MAX_LOOKS)

    async def known(self, group_id: str, owner: str) -> list[KnownChoice]:
        """All choices of a group, in order.

        Raises NotFound, also when the group belongs to another API key, or ServiceUnavailable.
        """
        first = await self._known(group_id) if is_rid(group_id) else None
        if first is None or first.reply.group_id != group_id or first.reply.owner != owner:
            raise StreamNotFound(group_id)
        others = [choice_rid(group_id, idx) for idx in range(1, first.reply.num_choices)]
        choices = [first]
        for rid, choice in zip(others, await self._gather(self._known, others), strict=True):
            if choice is None:
                raise StreamNotFound(rid)
            choices.append(choice)
        return choices

    async def texts(self, choices: Sequence[KnownChoice]) -> list[FoundChoice]:
        """What there is of each text. From now on this frontend hears what comes behind it.

        Raises ServiceUnavailable.
        """
        return list(await self._gather(self._text, choices))

    async def look(self, choice: KnownChoice) -> TextChunk | None:
        """All that the log has of it by now; None while it is queued. Nothing follows.

        Raises ServiceUnavailable.
        """
        if choice.done is not None:
            return done_chunk(choice.done)
        return await self._detok.text_so_far(choice.rid)

    async def _gather(
        self, work: Callable[[_Item], Awaitable[T]], items: Sequence[_Item]
    ) -> Sequence[T]:
        async def bounded(item: _Item) -> T:
            async with self._looks:
                return await work(item)

        return await asyncio.gather(*(bounded(item) for item in items))

    async def _known(self, rid: str) -> KnownChoice | None:
        """None for what was never accepted, or is too old. Raises ServiceUnavailable."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._look(rid)
            except BrokerError:
                await asyncio.sleep(_READ_RETRY_S)
        raise ServiceUnavailable("The queue cannot be read now.")

    async def _look(self, rid: str) -> KnownChoice | None:
        """A request that has left the queue has its records in the log, and soon its result.

        What is stored tells whether it is known: a detokenizer may not have read that yet.
        """
        queued = await self._cluster.queue.find_queued(rid)
        if queued is not None:
            return KnownChoice(rid, _unsealed(queued.request.reply), age_s=queued.age_s)
        subjects = self._cluster.subjects
        result, last = await asyncio.gather(
            PieceChain(self._cluster.js, subjects.results_stream).read(subjects.done(rid)),
            self._cluster.ownership.last(rid),
        )
        if result is not None:
            done = _read(result)
            return None if done.reply is None else KnownChoice(rid, _unsealed(done.reply), done)
        logged = None if last is None else await self._logged_reply(rid, last.record)
        return None if logged is None else KnownChoice(rid, _unsealed(logged))

    async def _logged_reply(self, rid: str, last: OwnershipRecord) -> SealedReply | None:
        """As each claim has it, or the end of a request that was never claimed."""
        if (told := _reply_of(last)) is not None:
            return told
        records = await self._cluster.ownership.read(rid)
        replies = (_reply_of(stored.record) for stored in records)
        return next((reply for reply in replies if reply is not None), None)

    async def _text(self, choice: KnownChoice) -> FoundChoice:
        chunk = None
        if choice.done is not None:
            chunk = done_chunk(choice.done)
        elif not choice.is_read_here:
            chunk = (await self._replay(choice.rid)).chunk
        return FoundChoice(choice.rid, choice.reply, chunk)

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


def _reply_of(record: OwnershipRecord) -> SealedReply | None:
    return None if isinstance(record, Release) else record.reply


def _unsealed(reply: SealedReply) -> ReplyParams:
    """Raises ServiceUnavailable."""
    try:
        unsealed = unseal(reply)
        if unsealed.answer is not None:
            AnswerParsers.of(unsealed.answer)
        return unsealed
    except ProtocolError as exc:
        raise ServiceUnavailable(
            f"A frontend of another version accepted this request; ask that one: {exc}"
        ) from exc


def _read(data: bytes) -> Done:
    """Raises ServiceUnavailable."""
    try:
        return decode(Done, data)
    except ProtocolError as exc:
        raise ServiceUnavailable(f"The result cannot be read: {exc}") from exc
