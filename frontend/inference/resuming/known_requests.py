"""Requests by the name that a caller has for them: whether they are here, and their end."""

from __future__ import annotations

import asyncio

from frontend.inference.answers.terminator import Terminator
from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.jobs.job import Caller
from frontend.streams.reply_router import ReplyRouter
from shared.errors import BrokerError, NotFound, ServiceUnavailable
from shared.protocol.finish import FinishReason
from shared.protocol.reply import ReplyParams
from shared.subjects import pool_slug


class KnownRequests:
    """Those that are read at this frontend are known at once; the others are sought in the log."""

    def __init__(self, router: ReplyRouter, finder: StreamFinder, terminator: Terminator) -> None:
        self._router = router
        self._finder = finder
        self._terminator = terminator

    async def has(self, group_id: str, caller: Caller) -> bool:
        """Whether the caller has such a request. Raises ServiceUnavailable."""
        if self._router.find(group_id) or self._router.named(group_id, caller.owner):
            return True
        try:
            await self._finder.known(group_id, caller.owner)
        except NotFound:
            return False
        return True

    async def abort(self, group_id: str, caller: Caller) -> int:
        """End all choices of a group, or of the groups here that their client calls so.

        Returns how many had not ended by themselves. Raises NotFound or ServiceUnavailable.
        """
        running = await self._running(group_id, caller)
        try:
            ended = await asyncio.gather(
                *(
                    self._terminator.end(
                        rid, pool_slug(reply.served_model), reply, FinishReason.CANCEL
                    )
                    for rid, reply in running
                )
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The request could not be ended now.") from exc
        return sum(ended)

    async def _running(self, group_id: str, caller: Caller) -> list[tuple[str, ReplyParams]]:
        local = self._router.find(group_id)[:1]
        if local and local[0].reply.owner != caller.owner:
            raise NotFound(f"No request {group_id!r} is known.", code="stream_not_found")
        streams = [stream for each in local for stream in each.streams]
        if not local:
            local = self._router.named(group_id, caller.owner)
            streams = [stream for each in local for stream in each.called(group_id)]
        if local:
            return [(stream.rid, stream.reply) for stream in streams if stream.finish is None]
        known = await self._finder.known(group_id, caller.owner)
        return [(choice.rid, choice.reply) for choice in known if not choice.is_over]
