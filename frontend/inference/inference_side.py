"""What HTTP and NATS ask of one set of streams: bodies become generations, which come to an end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

from frontend.inference.acceptor import Acceptor
from frontend.inference.admission.admission import Admission
from frontend.inference.admission.queue_timeout import take_queue_timeout
from frontend.inference.idempotency import Absent, KeyedStarts
from frontend.inference.resuming.known_requests import KnownRequests
from frontend.inference.resuming.resumer import Resumer
from frontend.inference.telemetry.server_span import ServerSpans
from frontend.jobs.client_request_id import client_id_of_body
from frontend.jobs.idempotency_key import FIELD, fingerprint, key_name, key_of
from frontend.jobs.job import Caller, Job
from frontend.jobs.stored_response import KeptResponse
from frontend.surfaces.answer import Answer
from frontend.surfaces.job_reader import JobReader
from frontend.text.event_id import EventId
from shared.protocol.reply import Surface
from shared.protocol.request import RequestGroup
from shared.subjects import new_rid
from shared.telemetry.tracing import EndedOnError

_MAX_METADATA_BYTES = 1024
# Where `store` has no other meaning.
_KEPT_BY_STORE = (
    Surface.CHAT,
    Surface.CHAT_BATCH,
    Surface.COMPLETIONS,
    Surface.GENERATE,
    Surface.INFILL,
    Surface.FORK,
)


class InferenceSide:
    """Starts, resumes and aborts what one queue and one log hold."""

    def __init__(
        self,
        jobs: JobReader,
        acceptor: Acceptor,
        resumer: Resumer,
        known: KnownRequests,
        admission: Admission,
        keyed_starts: KeyedStarts[Answer],
        spans: ServerSpans,
        frontend_id: str,
    ) -> None:
        self._jobs = jobs
        self._acceptor = acceptor
        self._resumer = resumer
        self.known = known
        self._admission = admission
        self._keyed_starts = keyed_starts
        self._spans = spans
        self._frontend_id = frontend_id

    async def start(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer:
        """Validate, tokenize, and put into the queue. Returns once it is stored there.

        With an idempotency key that was used before, join that request instead.
        Raises RequestError.
        """
        caller = self._spans.begin(caller, surface)
        with EndedOnError(caller.span):
            arrived_at = asyncio.get_running_loop().time()
            key, caller = _taken(surface, body, caller)
            caller, turn = await self._admission.turn(caller)
            with turn:
                return await self._start(surface, body, key, caller, arrived_at)

    async def _start(
        self, surface: Surface, body: dict[str, Any], key: str, caller: Caller, arrived_at: float
    ) -> Answer:
        if key:
            return await self._keyed_starts.start(
                self._keyed(surface, body, caller, arrived_at),
                key,
                key_name(caller.owner, key),
                fingerprint(surface, body),
            )
        job = await self._jobs.job(surface, body, caller)
        group = RequestGroup(new_rid(), "", int(time.time()), self._frontend_id)
        answer = await self._acceptor.queue(job, group, caller, arrived_at)
        assert answer is not None, "nobody knows of it, so nobody has ended it"
        return answer

    async def joined(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Answer | None:
        """What was started here under the request's key; None when that has no result, nor will.

        Nothing is started: the queue here takes no request any more. Raises RequestError.
        """
        arrived_at = asyncio.get_running_loop().time()
        key, caller = _taken(surface, body, caller)
        if not key:
            return None
        caller = self._spans.begin(caller, surface)
        with EndedOnError(caller.span):
            return await self._keyed_starts.joined(
                self._keyed(surface, body, caller, arrived_at),
                key,
                key_name(caller.owner, key),
                fingerprint(surface, body),
            )

    def _keyed(
        self, surface: Surface, body: dict[str, Any], caller: Caller, arrived_at: float
    ) -> _KeyedRequest:
        return _KeyedRequest(
            self._jobs, self._acceptor, self._resumer, surface, body, caller, arrived_at
        )

    async def read_response(
        self, kept: KeptResponse, caller: Caller, starting_after: int
    ) -> Answer:
        """The events of a kept response behind a number. Raises RequestError."""
        caller = self._spans.begin(caller)
        with EndedOnError(caller.span):
            return await self._resumer.read_response(kept, caller, starting_after)

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

        Raises NotFound, ResumeConflict when the client has another text, ServiceUnavailable.
        """
        caller = self._spans.begin(caller)
        with EndedOnError(caller.span):
            return await self._resumer.resume(
                group_id, event_id, caller, stream=stream, looks_on=looks_on
            )

    def admit_call(self, caller: Caller) -> None:
        """Count in a call that asks no model. Raises RateLimited."""
        self._admission.admit_call(caller)


def _taken(surface: Surface, body: dict[str, Any], caller: Caller) -> tuple[str, Caller]:
    """Take out of the body what says how it is asked: its key, "" for none, and its patience.

    What its client calls it is read, and stays there.
    """
    key = key_of(body, caller.idempotency_key)
    body.pop(FIELD, None)
    queue_timeout_s = take_queue_timeout(body, caller.queue_timeout_s)
    may_be_list = surface is Surface.GENERATE
    client_id = client_id_of_body(body, caller.client_id, may_be_list=may_be_list)
    wants_kept = surface in _KEPT_BY_STORE and body.get("store") is True
    metadata = _billed_metadata(body.get("metadata"))
    said = (queue_timeout_s, client_id, wants_kept, metadata)
    if said == (caller.queue_timeout_s, caller.client_id, caller.wants_kept, caller.metadata):
        return key, caller
    return key, replace(
        caller,
        queue_timeout_s=queue_timeout_s,
        client_id=client_id,
        wants_kept=wants_kept,
        metadata=metadata,
    )


def _billed_metadata(given: Any) -> dict[str, str]:
    """Its first pairs of texts, as far as every record of the request has room for them. APIs take
    it in many shapes, and ignore it.
    """
    billed: dict[str, str] = {}
    num_bytes = 0
    for name, value in given.items() if isinstance(given, dict) else ():
        if isinstance(value, str):
            num_bytes += len(name.encode()) + len(value.encode())
            if num_bytes > _MAX_METADATA_BYTES:
                break
            billed[name] = value
    return billed


@dataclass(slots=True)
class _KeyedRequest:
    """A request with an idempotency key: what is checked once stays checked."""

    jobs: JobReader
    acceptor: Acceptor
    resumer: Resumer
    surface: Surface
    body: dict[str, Any]
    caller: Caller
    arrived_at: float
    job: Job | None = None

    async def validate(self) -> None:
        if self.job is None:
            self.job = await self.jobs.job(self.surface, self.body, self.caller)

    async def queue(self, group: RequestGroup, *, is_first: bool) -> Answer | Absent:
        assert self.job is not None, "checked before"
        answer = await self.acceptor.queue(
            self.job, group, self.caller, self.arrived_at, is_shared=True, is_first=is_first
        )
        return Absent.OVER if answer is None else answer

    async def join(self, group: RequestGroup) -> Answer | Absent:
        return await self.resumer.join(group, self.caller, stream=bool(self.body.get("stream")))
