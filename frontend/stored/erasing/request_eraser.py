"""Erases a request: it is ended first, then all that was stored of it is overwritten."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import nats.errors

from frontend.jobs.idempotency_key import keys_of
from frontend.stored.erasing.frame_eraser import FrameEraser
from frontend.stored.erasing.trace_finder import Trace, TraceFinder
from shared.cluster import Cluster
from shared.errors import CasConflict, NotFound, ProtocolError, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.notices import Cancel
from shared.protocol.prompt_object import dead_prompt_object
from shared.protocol.request import RequestGroup
from shared.subjects import is_rid

_RESULT_TIMEOUT_S = 10.0  # from the end of a request to its result
_LATE_RESULT_S = 1.0  # of one that has left the queue: if none comes, it has expired
_POLL_S = 0.05
_MAX_AT_ONCE = 16

_Outcome = TypeVar("_Outcome")


class Erasure(msgspec.Struct, frozen=True):
    """What has been erased, and what is left until the log's age takes it."""

    num_requests: int
    gone_by: int | None = None  # unix seconds; None: nothing of it is left


class RequestEraser:
    """Each step may be done twice. What tells whose the request was goes last: who is cut short
    can ask again.

    What stays is an `end` without a word of the request: it keeps whoever still holds a copy of
    the message from running it again, and goes with the log's age.
    """

    def __init__(self, cluster: Cluster, by: str) -> None:
        self._cluster = cluster
        self._by = by  # who says so, in the log
        self._finder = TraceFinder(cluster)
        self._frames = FrameEraser(cluster)
        self._keys = cluster.bucket(cluster.subjects.idempotency_bucket)
        self._objects = cluster.objects(cluster.subjects.objects_bucket)
        self._attached = cluster.bucket(cluster.subjects.attached_bucket)

    async def erase(self, group_id: str, owner: str | None) -> Erasure:
        """A request with all its choices; `owner`: whose it has to be, None for an operator.

        Raises NotFound, also when it is another's, ServiceUnavailable or BrokerError.
        """
        traces = await self._finder.of_group(group_id) if is_rid(group_id) else []
        is_theirs = owner is None or all(trace.reply.owner == owner for trace in traces)
        if not traces or not is_theirs:
            raise NotFound(
                f"No request {group_id[:64]!r} is known: it may be too old, erased, or belong to "
                "another API key.",
                code="stream_not_found",
            )
        was_running = await self.end(traces)
        gone_by = None
        for trace in traces:
            records = await self._cluster.ownership.read(trace.rid)
            shared_at = await self._frames.erase_request(trace.rid, records)
            gone_by = max(filter(None, (gone_by, shared_at)), default=None)
        for reply in {trace.reply for trace in traces if trace.reply.is_shared}:
            await self._erase_key(reply.owner, reply.group_id)
        await self.forget(traces)
        return Erasure(len(traces), await self.gone_by(gone_by, was_running=was_running))

    async def end(self, traces: Sequence[Trace]) -> bool:
        """Gives those that are not over a last word and a result; returns whether there were any.

        Raises ServiceUnavailable when no detokenizer writes it, or BrokerError.
        """
        return any(await _for_all(traces, self._end))

    async def forget(self, traces: Sequence[Trace]) -> None:
        """All but frames and idempotency keys. Raises BrokerError."""
        await _for_all(traces, self._forget)

    async def gone_by(
        self, shared_at: datetime.datetime | None, *, was_running: bool
    ) -> int | None:
        """When the log's age will have taken frames that were stored until then.

        Of a request that ran until now, its worker may write one more. Raises BrokerError.
        """
        if shared_at is None and not was_running:
            return None
        stream = self._cluster.subjects.tokens_stream
        info = await self._cluster.js.api(f"STREAM.INFO.{stream}")
        last_at = shared_at
        if was_running or last_at is None:
            last_at = (await self._cluster.js.clock(stream)).leader_now
        max_age_s: float = info["config"]["max_age"] / 1e9
        return round(last_at.timestamp() + max_age_s) + 1

    async def _end(self, trace: Trace) -> bool:
        """False when it was over."""
        if await self._finder.has_result(trace.rid):
            return False  # though its message may still wait for its acknowledgement
        for queued in trace.queued:
            request = queued.request
            end = End(prev=0, reason=FinishReason.CANCEL, by=self._by, reply=request.reply)
            await self._cluster.ownership.end(trace.rid, end)
            with contextlib.suppress(nats.errors.Error):
                await self._cluster.nc.publish(
                    self._cluster.subjects.control(request.pool), encode(Cancel(trace.rid))
                )
        timeout_s = _RESULT_TIMEOUT_S if trace.queued else _LATE_RESULT_S
        if not await self._is_settled(trace, timeout_s) and trace.queued:
            raise ServiceUnavailable(
                f"Request {trace.rid} is ended, but no detokenizer has written its result: it is "
                "not erased. Ask again."
            )
        return bool(trace.queued)

    async def _is_settled(self, trace: Trace, timeout_s: float) -> bool:
        """Whether its result is there, or nobody has begun it, so that none will come."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while not await self._finder.has_result(trace.rid):
            if await self._cluster.ownership.last(trace.rid) is None:
                return True
            if loop.time() > give_up_at:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _forget(self, trace: Trace) -> None:
        js, subjects, rid = self._cluster.js, self._cluster.subjects, trace.rid
        for queued in trace.queued:
            await js.erase_message(subjects.requests_stream, queued.seq)
        for seq in trace.dead_seqs:
            await js.erase_message(subjects.dead_stream, seq)
        for name in (f"prompt-{rid}", dead_prompt_object(rid)):
            await self._objects.erase(name)
        await self._attached.erase(rid)
        await js.erase(subjects.results_stream, subjects.done(rid))
        await self._blank_ownership(rid)
        await js.erase(subjects.responses_stream, subjects.response(rid))

    async def _blank_ownership(self, rid: str) -> None:
        ownership, subjects = self._cluster.ownership, self._cluster.subjects
        while (last := await ownership.last(rid)) is not None:
            end = End(prev=last.seq, reason=FinishReason.CANCEL, by=self._by)
            try:
                seq = await ownership.append(rid, end)
            except CasConflict:
                continue
            await self._cluster.js.erase(subjects.tokens_stream, subjects.ownership(rid), below=seq)
            return

    async def _erase_key(self, owner: str, group_id: str) -> None:
        for entry in await self._keys.entries(keys_of(owner)):
            with contextlib.suppress(ProtocolError):
                if decode(RequestGroup, entry.value).group_id == group_id:
                    await self._keys.erase(entry.key)


async def _for_all(
    traces: Sequence[Trace], work: Callable[[Trace], Awaitable[_Outcome]]
) -> list[_Outcome]:
    """A few at a time, and all of them; then raises what the first one that failed did."""
    limit = asyncio.Semaphore(_MAX_AT_ONCE)

    async def bounded(trace: Trace) -> _Outcome:
        async with limit:
            return await work(trace)

    tasks = [asyncio.ensure_future(bounded(trace)) for trace in traces]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]
