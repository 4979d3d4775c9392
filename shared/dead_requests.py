"""The stream DEAD: requests that were given up, kept until somebody requeues or drops them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from shared.cluster import Cluster
from shared.codec import decode, encode
from shared.errors import BrokerError, JetflockError, LimitReached
from shared.model_catalog import ModelCatalog
from shared.prompt_object import dead_prompt_object, prompt_object
from shared.protocol.dead import DeadRequest
from shared.protocol.request import GenerateRequest
from shared.subjects import new_rid

_ERR_NOT_DELETED = 10057  # there is no such message


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
        """Oldest first. Raises BrokerError."""
        found: dict[str, StoredDead] = {}
        async for message in self._js.direct_scan(
            self._subjects.dead_stream, self._subjects.dead("*")
        ):
            dead = decode(DeadRequest, message.data)
            before = found.get(dead.rid)
            seqs = (message.seq,) if before is None else (*before.seqs, message.seq)
            found[dead.rid] = StoredDead(dead, seqs)
        return list(found.values())

    async def drop(self, stored: StoredDead) -> None:
        """Forget it, unless somebody has. Raises BrokerError."""
        for seq in stored.seqs:
            body = {"seq": seq, "no_erase": True}
            try:
                await self._js.api(f"STREAM.MSG.DELETE.{self._subjects.dead_stream}", body)
            except BrokerError as exc:
                if exc.err_code != _ERR_NOT_DELETED:
                    raise
        if stored.dead.prompt_object:
            await self._catalog.delete_object(stored.dead.prompt_object)

    async def requeue(self, stored: StoredDead) -> str:
        """Queue it under a new rid, for nobody in particular, and forget it; returns the rid.

        Its deadline starts anew. Dying in between leaves it dead and queued, never neither.
        Raises NotKept or BrokerError.
        """
        request = _detached(stored.dead, self._subjects.detached_reply)
        reply = request.reply
        if name := prompt_object(request.rid, reply.num_prompt_tokens, has_images=reply.has_images):
            if not stored.dead.prompt_object:
                raise NotKept(f"the prompt of {stored.dead.rid} could not be kept")
            prompt = await self._catalog.object(stored.dead.prompt_object)
            await self._catalog.put_object(name, prompt)
            request = msgspec.structs.replace(request, prompt_object=name)
        subject = self._subjects.request(request.pool, stored.dead.job_class)
        await self._js.publish(subject, encode(request), msg_id=request.rid)
        await self.drop(stored)
        return request.rid


def _detached(dead: DeadRequest, reply_subject: str) -> GenerateRequest:
    """The same under a new rid: its stream is resumed with the same API key."""
    if not dead.request:
        raise NotKept(f"{dead.rid} was too large to be kept")
    request = decode(GenerateRequest, dead.request)
    rid = new_rid()
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
    return msgspec.structs.replace(request, rid=rid, reply=reply)
