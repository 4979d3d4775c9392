"""Which frontends read a request: the last one that leaves it ends it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TypeAlias

from frontend.streams.generation import Generation
from shared.broker.kv_bucket import KvBucket, KvEntry
from shared.errors import BrokerError, CasConflict, ProtocolError, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.protocol.reply import ReplyParams, SealedReply
from shared.protocol.request import Readers
from shared.subjects import is_rid
from shared.telemetry.log import get_logger

_FRONTENDS = "frontends."
_JOINED = "joined."

AnyReply: TypeAlias = ReplyParams | SealedReply

log = get_logger(__name__)


@dataclass(slots=True)
class Joined:
    """What came of joining the requests of a generation."""

    before: dict[str, Readers] = field(default_factory=dict)  # who read each, by rid
    is_ending: bool = False  # the last reader of one of them has left, and it is being ended


class Attachments:
    """The KV bucket `attached`. Without an entry, the frontend that accepted a request reads it.

    A resumed stream has one reader, the latest. A request with an idempotency key may have many.
    All come and go by compare-and-set, so that nobody joins a request that is being ended, and
    nobody ends one that has just been joined.

    Beside the entries stand marks: which frontends there were, and which requests each has joined
    that another one accepted. So whoever looks after a dead one's requests reads no others.
    """

    def __init__(self, bucket: KvBucket, frontend_id: str) -> None:
        self._bucket = bucket
        self._frontend_id = frontend_id

    async def join_all(self, generation: Generation) -> Joined:
        """Tell other frontends that the stream is read here: stored before the stream opens.

        All of its requests, or none. Raises ServiceUnavailable.
        """
        joined = Joined()
        streams = [stream for stream in generation.streams if stream.finish is None]
        joins = [self.join(each.rid, each.reply, joined.before) for each in streams]
        try:
            readers = await asyncio.gather(*joins, return_exceptions=True)
            for each in readers:
                if isinstance(each, BaseException):
                    raise each
        except BaseException as exc:
            await self.undo(generation, joined)
            if isinstance(exc, BrokerError):
                raise ServiceUnavailable("The stream could not be attached now.") from exc
            raise
        joined.is_ending = None in readers
        return joined

    async def join(
        self, rid: str, reply: AnyReply, noted: dict[str, Readers] | None = None
    ) -> Readers | None:
        """Who read it before. None: the last one has left, and it is being ended.

        It is `noted` by rid before anything is written. Raises BrokerError.
        """
        if not reply.frontend_id:
            return Readers(("",))  # detached: it runs on, whoever reads it
        if reply.frontend_id != self._frontend_id:  # the mark first: what it misses is not swept
            await self._bucket.put(f"{_JOINED}{self._frontend_id}.{rid}", b"")
        while True:
            entry = await self._bucket.get(rid)
            before = _readers(entry, reply)
            if not before.frontends:
                return None
            # Written also when we are among them: who is about to leave must see a change.
            frontends: tuple[str, ...] = (self._frontend_id,)
            if reply.is_shared:
                frontends = tuple(dict.fromkeys((*before.frontends, self._frontend_id)))
            if noted is not None:
                noted[rid] = before
            try:
                await self._bucket.put_if(rid, encode(Readers(frontends)), _revision(entry))
            except CasConflict:
                continue
            return before

    async def undo(self, generation: Generation, joined: Joined) -> None:
        """The client was refused after all, or cut off: whoever read its requests before reads them
        still.
        """
        # A task that was cancelled gets no second answer from NATS: this is one of its own.
        await asyncio.create_task(self._undo_all(generation, joined))

    async def _undo_all(self, generation: Generation, joined: Joined) -> None:
        for stream in generation.streams:
            if stream.rid in joined.before:
                with contextlib.suppress(BrokerError):  # somebody came or went: theirs counts
                    await self._undo(stream.rid, stream.reply, joined.before[stream.rid])

    async def _undo(self, rid: str, reply: AnyReply, before: Readers) -> None:
        entry = await self._bucket.get(rid)
        now = _readers(entry, reply).frontends
        if self._frontend_id in before.frontends or self._frontend_id not in now:
            return
        others = tuple(name for name in now if name != self._frontend_id)
        readers = Readers(others) if others else before
        await self._bucket.put_if(rid, encode(readers), _revision(entry))

    async def leave(self, rid: str, reply: AnyReply, frontend_id: str = "") -> bool:
        """Whether nobody reads it now, so that it is to be ended.

        Raises CasConflict when somebody joined or left meanwhile: look again.
        """
        leaver = frontend_id or self._frontend_id
        entry = await self._bucket.get(rid)
        readers = _readers(entry, reply)
        if readers.left_by:
            return True
        if leaver not in readers.frontends:
            return False
        rest = tuple(name for name in readers.frontends if name != leaver)
        left = Readers(rest, left_by="" if rest else leaver)
        await self._bucket.put_if(rid, encode(left), _revision(entry))
        return not rest

    async def register(self) -> None:
        """There is this frontend: whoever starts later looks after what it leaves behind."""
        await self._bucket.put(_FRONTENDS + self._frontend_id, b"")

    async def frontends(self) -> list[str]:
        """All that have registered, and were not forgotten since; possibly a moment old."""
        entries = await self._bucket.entries(_FRONTENDS)
        return [entry.key.removeprefix(_FRONTENDS) for entry in entries]

    async def joined_by(self, frontend_id: str) -> list[str]:
        """Requests that another frontend accepted, and this one has joined."""
        prefix = f"{_JOINED}{frontend_id}."
        rids = [entry.key.removeprefix(prefix) for entry in await self._bucket.entries(prefix)]
        return [rid for rid in rids if is_rid(rid)]

    async def forget(self, frontend_id: str) -> None:
        """Everything that it left behind is looked after."""
        await self._bucket.delete(f"{_JOINED}{frontend_id}.>")
        await self._bucket.delete(_FRONTENDS + frontend_id)


def _readers(entry: KvEntry | None, reply: AnyReply) -> Readers:
    """What cannot be read is no entry: nobody counts it, and the next one replaces it."""
    if entry is not None:
        try:
            return decode(Readers, entry.value)
        except ProtocolError as exc:
            log.error("readers_unreadable", key=entry.key, error=str(exc))
    return Readers((reply.frontend_id,))


def _revision(entry: KvEntry | None) -> int:
    return 0 if entry is None else entry.revision
