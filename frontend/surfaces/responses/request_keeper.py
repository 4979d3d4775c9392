"""Keeps what was asked, to be forked and compared when it is over: where the operator allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from frontend.jobs.job import Caller, Job
from frontend.limits.work_limits import KeptRequests
from frontend.surfaces.responses.store import ResponseStore
from shared.errors import InvalidRequest, RequestError
from shared.protocol.request import GenerateRequest
from shared.subjects import is_sampled
from shared.telemetry.log import get_logger

log = get_logger(__name__)

NOT_KEPT_HEADER = "x-request-not-kept"


class KeptOfJob(NamedTuple):
    """The requests, which name their records where there are any."""

    requests: list[GenerateRequest]
    headers: Mapping[str, str]  # tell a client that asked why there are none


class RequestKeeper:
    """What is kept lies among the responses, within their bytes and for their time, and is erased
    as they are.
    """

    def __init__(self, responses: ResponseStore, kept: KeptRequests, share: float) -> None:
        """`share`: of the requests that nobody has asked to keep."""
        self._responses = responses
        self._kept = kept
        self._share = share

    async def keep(
        self, requests: Sequence[GenerateRequest], job: Job, caller: Caller
    ) -> KeptOfJob:
        """A request that cannot be kept is served all the same."""
        if not (caller.wants_kept or self._is_chosen(requests[0].reply.group_id, job)):
            return KeptOfJob(list(requests), {})
        if self._kept == "none":
            return _not_kept(requests, caller, "the operator has no requests kept")
        kept: list[GenerateRequest] = []
        try:
            self._check(job)
            for request in requests:
                kept.append(await self._keep(request))  # noqa: PERF401 (who fails forgets them)
        except RequestError as exc:
            for request in kept:
                if not request.reply.is_shared:  # else another frontend may have queued it
                    await self._responses.forget(request.rid)
            log.info("request_not_kept", error=exc.message)
            return _not_kept(requests, caller, exc.message)
        return KeptOfJob(kept, {})

    def _is_chosen(self, group_id: str, job: Job) -> bool:
        # Of a run that is compared with its source the next comparison would be of itself.
        is_rerun = job.fork is not None and job.fork.is_rerun
        return self._kept == "all" and not is_rerun and is_sampled(group_id, self._share)

    async def _keep(self, request: GenerateRequest) -> GenerateRequest:
        # Of a fork the log has what it was given.
        kept_at = await self._responses.put_request(msgspec.structs.replace(request, given=None))
        reply = msgspec.structs.replace(request.reply, kept_at=kept_at)
        return msgspec.structs.replace(request, reply=reply)

    def _check(self, job: Job) -> None:
        """Raises InvalidRequest for what cannot be forked when it is over."""
        what = None
        if any(prompt.images for prompt in job.prompts):
            what = "has images"
        elif any(prompt.embeds for prompt in job.prompts):
            what = "has a prompt of embeddings"
        elif job.pooling is not None:
            what = "has no output tokens"
        elif job.sampling.params.beam is not None:
            what = "is a beam search"
        if what is not None:
            raise InvalidRequest(f"the request {what}: it cannot be forked", param="store")


def _not_kept(requests: Sequence[GenerateRequest], caller: Caller, why: str) -> KeptOfJob:
    return KeptOfJob(list(requests), {NOT_KEPT_HEADER: why} if caller.wants_kept else {})
