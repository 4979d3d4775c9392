"""Finds what a fork goes on with: a request, and the tokens that the log has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from frontend.jobs.job import Caller
from frontend.streams.detok_client import DetokClient
from frontend.surfaces.responses.store import ResponseStore
from shared.broker.piece_chain import PieceChain
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    ConfigError,
    InvalidRequest,
    ProtocolError,
    RequestNotKept,
    ServiceUnavailable,
    StreamNotFound,
)
from shared.protocol.codec import decode
from shared.protocol.finish import Finish
from shared.protocol.log_records import Release
from shared.protocol.prompt_object import PromptData, prompt_data
from shared.protocol.reply import ReplyParams, SealedReply
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import Done, done_chunk
from shared.subjects import choice_rid, is_rid


@dataclass(frozen=True, slots=True)
class ForkSource:
    """A choice of a group: what was asked, and what the log has by now."""

    request: GenerateRequest
    reply: ReplyParams
    prompt: PromptData
    token_ids: list[int]
    logprobs: bytes  # a record for each, if the request asks
    prompt_logprobs: bytes
    finish: Finish | None

    def logprobs_of(self, num_tokens: int) -> bytes:
        """The logprobs of the first tokens."""
        record_bytes = len(self.logprobs) // (len(self.token_ids) or 1)
        return self.logprobs[: num_tokens * record_bytes]


class ForkSources:
    """A request stands in the queue until it is over, and behind that where it is kept. All reads
    are leader reads.
    """

    def __init__(
        self,
        cluster: Cluster,
        catalog: ModelCatalog,
        detok: DetokClient,
        kept: ResponseStore,
        older: ForkSources | None = None,
    ) -> None:
        """`older`: those that the service has moved away from, where streams run still."""
        self._cluster = cluster
        self._catalog = catalog
        self._detok = detok
        self._kept = kept
        self._older = older

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def find(self, group_id: str, choice: int, caller: Caller) -> ForkSource:
        """Raises NotFound, also for what is another's, InvalidRequest for a choice that it has not,
        NotForkable when the request is not kept, ServiceUnavailable.
        """
        if not is_rid(group_id):
            raise StreamNotFound(group_id)
        try:
            return await self._find(group_id, choice, caller)
        except StreamNotFound:
            if self._older is None:
                raise
            return await self._older.find(group_id, choice, caller)
        except BrokerError as exc:
            raise ServiceUnavailable("The stream cannot be read now.") from exc
        except ProtocolError as exc:
            raise ServiceUnavailable(
                f"A frontend of another version accepted this request; ask that one: {exc}"
            ) from exc

    async def _find(self, group_id: str, choice: int, caller: Caller) -> ForkSource:
        rid = choice_rid(group_id, choice)
        request = await self._cluster.queue.find(rid)
        prompt = None if request is None else await self._prompt(request)
        done = None
        if request is None or prompt is None:
            kept = await self._kept.own_request(rid)
            if kept is None:
                await self._refuse(group_id, choice, caller.owner)
            request, done = kept
            prompt = PromptData(request.prompt_ids)
        reply = unseal(request.reply)
        is_theirs = reply.owner == caller.owner
        if done is not None:
            is_theirs = caller.may_read_kept(reply.owner)
        if not is_theirs or reply.group_id != group_id:
            raise StreamNotFound(group_id)
        chunk = await self._detok.text_so_far(rid) if done is None else done_chunk(done)
        if chunk is None:
            return ForkSource(request, reply, prompt, [], b"", b"", None)
        return ForkSource(
            request,
            reply,
            prompt,
            chunk.token_ids,
            chunk.logprobs,
            chunk.prompt_logprobs,
            chunk.finish,
        )

    async def _prompt(self, request: GenerateRequest) -> PromptData | None:
        """None where it has just been taken away: the request is over."""
        if not request.prompt_object:
            return prompt_data(request, b"")
        try:
            return prompt_data(request, await self._catalog.object(request.prompt_object))
        except ConfigError:
            return None

    async def _refuse(self, group_id: str, choice: int, owner: str) -> NoReturn:
        """Says why there is no such request."""
        reply = await self._reply(group_id)
        if reply is None or reply.owner != owner or reply.group_id != group_id:
            raise StreamNotFound(group_id)
        if choice >= reply.num_choices:
            raise InvalidRequest(
                f"'choice' is {choice}, the stream has {reply.num_choices}", param="choice"
            )
        raise RequestNotKept(
            f"Stream {group_id} is over, and its request was not kept. Running ones can be forked; "
            "of others the operator has requests kept by --keep-requests."
        )

    async def _reply(self, rid: str) -> SealedReply | None:
        """The reply data of a request that is known, wherever it is."""
        queued = await self._cluster.queue.find(rid)
        if queued is not None:
            return queued.reply
        if (kept := await self._kept.own_request(rid)) is not None:
            return kept.request.reply
        subjects = self._cluster.subjects
        results = PieceChain(self._cluster.js, subjects.results_stream)
        if (stored := await results.read(subjects.done(rid))) is not None:
            return decode(Done, stored).reply
        records = [each.record for each in await self._cluster.ownership.read(rid)]
        replies = [None if isinstance(each, Release) else each.reply for each in records]
        return next((reply for reply in replies if reply is not None), None)
