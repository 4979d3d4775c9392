"""Which frontends read a request: the last one that leaves it ends it."""

from __future__ import annotations

import asyncio

from frontend.generation import Generation
from shared.codec import decode, encode
from shared.errors import BrokerError, CasConflict, ProtocolError, ServiceUnavailable
from shared.kv_bucket import KvBucket, KvEntry
from shared.log import get_logger
from shared.protocol.reply import ReplyParams
from shared.protocol.request import Readers

log = get_logger(__name__)


class Attachments:
    """The KV bucket `attached`. Without an entry, the frontend that accepted a request reads it.

    A resumed stream has one reader, the latest. A request with an idempotency key may have many:
    they come and go by compare-and-set, so that nobody joins a request that is being ended, and
    nobody ends one that has just been joined.
    """

    def __init__(self, bucket: KvBucket, frontend_id: str) -> None:
        self._bucket = bucket
        self._frontend_id = frontend_id

    async def join_all(self, generation: Generation) -> bool:
        """Tell other frontends that the stream is read here: stored before the stream opens.

        False: one of its requests is being ended. Raises ServiceUnavailable.
        """
        try:
            joined = await asyncio.gather(
                *(
                    self.join(stream.rid, stream.reply)
                    for stream in generation.streams
                    if stream.finish is None
                )
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The stream could not be attached now.") from exc
        return all(joined)

    async def join(self, rid: str, reply: ReplyParams) -> bool:
        """False: the last reader has left, and it is being ended. Raises BrokerError."""
        if not reply.frontend_id:
            return True  # detached: it runs on, whoever reads it
        if not reply.is_shared:
            await self._bucket.put(rid, encode(Readers((self._frontend_id,))))
            return True
        while True:
            entry = await self._bucket.get(rid)
            others = _readers(entry, reply).frontends
            if not others:
                return False
            # Written also when we are among them: who is about to leave must see a change.
            frontends = tuple(dict.fromkeys((*others, self._frontend_id)))
            try:
                await self._bucket.put_if(rid, encode(Readers(frontends)), _revision(entry))
            except CasConflict:
                continue
            return True

    async def leave(self, rid: str, reply: ReplyParams, frontend_id: str = "") -> bool:
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
        if not reply.is_shared:
            return True
        rest = tuple(name for name in readers.frontends if name != leaver)
        left = Readers(rest, left_by="" if rest else leaver)
        await self._bucket.put_if(rid, encode(left), _revision(entry))
        return not rest

    async def all(self) -> dict[str, Readers]:
        """By rid; possibly a moment old. What cannot be read is told and left out."""
        readers = {}
        for entry in await self._bucket.entries():
            try:
                readers[entry.key] = decode(Readers, entry.value)
            except ProtocolError as exc:
                log.error("readers_unreadable", key=entry.key, error=str(exc))
        return readers


def concerns(frontend_id: str, reply: ReplyParams, readers: Readers | None) -> bool:
    """Whether the death of a frontend may leave this request without a reader."""
    if readers is None:
        return reply.frontend_id == frontend_id
    return frontend_id in readers.frontends or readers.left_by == frontend_id


def _readers(entry: KvEntry | None, reply: ReplyParams) -> Readers:
    return Readers((reply.frontend_id,)) if entry is None else decode(Readers, entry.value)


def _revision(entry: KvEntry | None) -> int:
    return 0 if entry is None else entry.revision
