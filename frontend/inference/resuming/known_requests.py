"""Requests by the name that a caller has for them: whether they are here, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from frontend.inference.answers.terminator import Terminator
from frontend.inference.resuming.kept_streams import KeptStreams, kept_page
from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.inference.resuming.stream_tokens import StreamTokens
from frontend.jobs.job import Caller
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.responses.store import KeptRequest, ResponseStore
from shared.errors import BrokerError, InvalidRequest, NotFound, ServiceUnavailable
from shared.protocol.finish import FinishReason
from shared.protocol.reply import ReplyParams
from shared.protocol.text import done_chunk
from shared.subjects import choice_rid, is_rid, pool_slug


class KnownRequests:
    """Those that are read at this frontend are known at once; the others are sought in the log."""

    def __init__(
        self,
        router: ReplyRouter,
        finder: StreamFinder,
        terminator: Terminator,
        responses: ResponseStore,
    ) -> None:
        self._router = router
        self._finder = finder
        self._terminator = terminator
        self._responses = responses

    async def has(self, group_id: str, caller: Caller) -> bool:
        """Whether the caller has such a request. Raises ServiceUnavailable."""
        if self._router.find(group_id) or self._router.named(group_id, caller.owner):
            return True
        try:
            await self._finder.known(group_id, caller.owner)
        except NotFound:
            return await self._kept(group_id, 0, caller) is not None
        return True

    async def tokens(
        self, group_id: str, choice: int, caller: Caller, num_top: int
    ) -> StreamTokens:
        """Those of one choice, as the log has them by now, with so many alternatives at most.

        Raises NotFound, InvalidRequest for a choice that it has not, or ServiceUnavailable.
        """
        try:
            known = await self._finder.known(group_id, caller.owner)
        except NotFound:
            kept = await self._kept(group_id, choice, caller)
            if kept is None or kept.done is None:
                raise
            return StreamTokens.of(kept.request.reply, done_chunk(kept.done), num_top)
        if choice >= len(known):
            raise InvalidRequest(
                f"'choice' is {choice}, the stream has {len(known)}", param="choice"
            )
        chunk = await self._finder.look(known[choice])
        return StreamTokens.of(known[choice].reply, chunk, num_top)

    async def kept(self, query: Mapping[str, str], caller: Caller) -> KeptStreams:
        """A page of the caller's. Raises InvalidRequest or ServiceUnavailable."""
        return await kept_page(self._responses.all, query, caller)

    async def _kept(self, group_id: str, choice: int, caller: Caller) -> KeptRequest | None:
        """One that is over, and that the caller may read. Raises ServiceUnavailable."""
        if not is_rid(group_id):
            return None
        kept = await self._responses.get_request(choice_rid(group_id, choice))
        if kept is None or kept.done is None or not caller.may_read_kept(kept.request.reply.owner):
            return None
        return kept

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
