"""The core that HTTP and NATS share. Where a service moves, it knows both sides.

There is one side, but while a service moves to other streams: then requests that were accepted on
the old side run and end there, whoever asks for them, and new ones are accepted where the queue is
open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from frontend.inference.inference_side import InferenceSide
from frontend.inference.resuming.kept_streams import KeptStreams
from frontend.inference.resuming.stream_tokens import StreamTokens
from frontend.jobs.job import Caller
from frontend.jobs.stored_response import KeptResponse
from frontend.surfaces.answer import Answer
from frontend.text.event_id import EventId
from frontend.text.wire_struct import Count, WireStruct
from shared.errors import ServiceMoved, ServiceUnavailable
from shared.event_wait import wait_event
from shared.protocol.reply import Surface

_GOING_OVER_S = 10.0  # from a closed queue to the open one, at most


class Aborted(WireStruct, frozen=True, kw_only=True):
    """What is told of an abort."""

    rid: str
    num_aborted: Count  # choices that had not ended


class Inference:
    """Starts, resumes and aborts."""

    def __init__(self, side: InferenceSide, on_closed: Callable[[], None]) -> None:
        self._sides = [side]  # the newest first
        self._current = side  # where requests are accepted
        self.gone_over = asyncio.Event()
        self._on_closed = on_closed  # the queue has refused as only a closed one does
        self.is_draining = False

    def know(self, newer: InferenceSide) -> None:
        """The service moves there: what others have started there can be read."""
        self._sides.insert(0, newer)

    def go_over(self) -> None:
        """The old queue is closed: the newest side accepts requests."""
        self._current = self._sides[0]
        self.gone_over.set()

    def forget_older(self) -> None:
        """The old streams are gone."""
        del self._sides[1:]

    async def start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        """Validate, tokenize, and put into the queue. Returns once it is stored there.

        With an idempotency key that was used before, join that request instead.
        Raises RequestError.
        """
        answer = await self._start(surface, body, caller)
        unknown = caller.unknown.headers()
        return replace(answer, headers={**answer.headers, **unknown}) if unknown else answer

    async def _start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        self._refuse_when_draining()
        if not self.gone_over.is_set():
            try:
                return await self._current.start(surface, dict(body), caller)
            except ServiceMoved:
                self._on_closed()
                if not await wait_event(self.gone_over, _GOING_OVER_S):
                    raise
        for older in self._sides[1:]:  # closed: who is not there now will never be
            if (answer := await older.joined(surface, dict(body), caller)) is not None:
                return answer
        return await self._current.start(surface, body, caller)

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        self._refuse_when_draining()
        side = await self._side_of(kept.record.rid, caller)
        return await side.read_response(kept, caller, starting_after)

    async def resume(
        self,
        group_id: str,
        event_id: EventId | None,
        caller: Caller,
        *,
        stream: bool,
        looks_on: bool = False,
    ) -> Answer:
        """Go on after the event that the client saw last; from the start when it saw none.

        `looks_on`: beside who reads it, so that nothing ends or goes on for its sake.
        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        self._refuse_when_draining()
        side = await self._side_of(group_id, caller)
        return await side.resume(group_id, event_id, caller, stream=stream, looks_on=looks_on)

    def admit_call(self, caller: Caller) -> None:
        """Count in a call that asks no model. Raises RateLimited."""
        self._current.admit_call(caller)

    async def tokens(
        self, group_id: str, choice: int, caller: Caller, num_top: int
    ) -> StreamTokens:
        """Those of one choice, as the log has them by now, with so many alternatives at most.

        Raises RateLimited, NotFound, InvalidRequest or ServiceUnavailable.
        """
        self._current.admit_call(caller)
        side = await self._side_of(group_id, caller)
        return await side.known.tokens(group_id, choice, caller, num_top)

    async def kept(self, query: Mapping[str, str], caller: Caller) -> KeptStreams:
        """A page of the kept streams that are over.

        Raises RateLimited, InvalidRequest or ServiceUnavailable.
        """
        self._current.admit_call(caller)
        return await self._current.known.kept(query, caller)

    async def abort(self, group_id: str, caller: Caller) -> int:
        """End all choices of a group. Returns how many had not ended by themselves.

        Raises NotFound or ServiceUnavailable.
        """
        return await (await self._side_of(group_id, caller)).known.abort(group_id, caller)

    async def _side_of(self, group_id: str, caller: Caller) -> InferenceSide:
        """Where the request is, or is sought last. Raises ServiceUnavailable."""
        *newer, oldest = self._sides
        for side in newer:
            if await side.known.has(group_id, caller):
                return side
        return oldest

    def _refuse_when_draining(self) -> None:
        if self.is_draining:
            raise ServiceUnavailable("This frontend is shutting down.")
