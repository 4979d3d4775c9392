"""The stream DEAD: requests that were given up, kept until somebody requeues or drops them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import ConfigError, JetflockError, LimitReached, ProtocolError
from shared.protocol.codec import decode, decode_request, encode
from shared.protocol.dead import DeadRequest
from shared.protocol.prompt_object import dead_prompt_object, prompt_object
from shared.protocol.request import GenerateRequest
from shared.subjects import requeued_rid
from shared.telemetry.log import get_logger

log = get_logger(__name__)


class NotKept(JetflockError):
    """The dead request cannot be queued again: it, or its prompt, could not be kept."""


@dataclass(frozen=True, slots=True)
class StoredDead:
    """A dead request, and where its copies are in the stream."""

    dead: DeadRequest
    seqs: tuple[int, ...]


class DeadRequests:
    """Puts, lists and takes out. A request may be there twice when a worker died while it wrote;
    it is shown once, and goes with all its copies.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._subjects = cluster.subjects
        self._queue = cluster.queue
        self._ownership = cluster.ownership
        self._level = cluster.level
        self._catalog = ModelCatalog(cluster)

    async def put(self, dead: DeadRequest) -> list[StoredDead]:
        """Store it, once in a while: repeats within two minutes are dropped by the server.

        Returns the oldest ones, which had to make room for it. Raises LimitReached when it is
        larger than all that may be kept.
        """
        oldest: list[StoredDead] | None = None
        dropped: list[StoredDead] = []
        while True:
            try:
                subject = self._subjects.dead(dead.pool)
                await self._js.publish(subject, encode(dead), msg_id=dead.rid)
                return dropped
            except LimitReached:
                oldest = await self.all() if oldest is None else oldest
                if not oldest:
                    raise
                dropped.append(oldest.pop(0))
                await self.drop(dropped[-1])

    async def drop_older_than(self, ttl_s: float) -> list[StoredDead]:
        """Returns those that have been kept for so long. Raises BrokerError."""
        born = time.time() - ttl_s
        expired = [stored for stored in await self.all() if stored.dead.died_at < born]
        for stored in expired:
            await self.drop(stored)
        return expired

    async def copy_prompt(self, request: GenerateRequest) -> str:
        """Keep a long prompt beyond its request; the name of the copy, or "" for a short one.

        Raises ConfigError when the prompt is gone.
        """
        if not request.prompt_object:
            return ""
        name = dead_prompt_object(request.rid)
        await self._catalog.put_object(name, await self._catalog.object(request.prompt_object))
        return name

    async def all(self) -> list[StoredDead]:
        """Oldest first. One that cannot be read is left out, and logged. Raises BrokerError."""
        found: dict[str, StoredDead] = {}
        async for message in self._js.direct_scan(
            self._subjects.dead_stream, self._subjects.dead("*")
        ):
            try:
                dead = decode(DeadRequest, message.data)
            except ProtocolError as exc:
                log.warning("dead_request_unreadable", seq=message.seq, error=str(exc))
                continue
            before = found.get(dead.rid)
            seqs = (message.seq,) if before is None else (*before.seqs, message.seq)
            found[dead.rid] = StoredDead(dead, seqs)
        return list(found.values())

    async def rids(self) -> set[str]:
        """The ids of all that the leader held at the call.

        Raises BrokerError, or ProtocolError when one cannot be read.
        """
        scan = self._js.proven_scan(self._subjects.dead_stream, self._subjects.dead("*"))
        return {decode(DeadRequest, message.data).rid async for message in scan}

    async def drop(self, stored: StoredDead) -> None:
        """Forget it, unless somebody has. Raises BrokerError."""
        for seq in stored.seqs:
            await self._js.erase_message(self._subjects.dead_stream, seq)
        if stored.dead.prompt_object:
            await self._catalog.erase_object(stored.dead.prompt_object)

    async def requeue(self, stored: StoredDead) -> str:
        """Queue it under a new rid, for nobody in particular, and forget it; returns the rid.

        Its deadline starts anew. Dying in between leaves it dead and queued, never neither. The rid
        is always the same, so that it runs once, however many do this at once or again.
        Raises NotKept or BrokerError.
        """
        request = _detached(stored.dead, self._subjects.detached_reply)
        reply = request.reply
        if name := prompt_object(request.rid, reply.num_prompt_tokens, has_images=reply.has_images):
            if not stored.dead.prompt_object:
                raise NotKept(f"the prompt of {stored.dead.rid} could not be kept")
            await self._copy_back(stored, name)
            request = msgspec.structs.replace(request, prompt_object=name)
        if await self._ownership.last(request.rid) is None:  # else it runs, or has run
            payload = encode(self._level.stamp(request))
            await self._queue.put(request, stored.dead.job_class, payload)
        await self.drop(stored)
        return request.rid

    async def _copy_back(self, stored: StoredDead, name: str) -> None:
        """The copy of somebody else who queues it just now is as good, and perhaps being read."""
        if await self._catalog.has_object(name):
            return
        try:
            prompt = await self._catalog.object(stored.dead.prompt_object)
        except ConfigError as exc:
            raise NotKept(
                f"the prompt of {stored.dead.rid} is gone: somebody else has just queued it "
                "again, or dropped it"
            ) from exc
        await self._catalog.put_object(name, prompt)


def _detached(dead: DeadRequest, reply_subject: str) -> GenerateRequest:
    """The same under a new rid: its stream is resumed with the same API key."""
    if not dead.request:
        raise NotKept(f"{dead.rid} was too large to be kept")
    try:
        request = decode_request(dead.request)
    except ProtocolError as exc:
        raise NotKept(f"{dead.rid} cannot be read by this version of jetflock: {exc}") from exc
    rid = requeued_rid(dead.rid)
    reply = msgspec.structs.replace(
        request.reply,
        subject=reply_subject,
        group_id=rid,
        choice_idx=0,
        num_choices=1,
        num_prompts=1,
        created=int(time.time()),
        frontend_id="",
    )
    return msgspec.structs.replace(request, rid=rid, reply=reply, may_be_copy=True)
