"""Answers replay requests of one partition: the text of a request from an offset on."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import nats.errors
from nats.aio.msg import Msg

from detok.chunk_pieces import chunk_from, pieces_of
from detok.decode_status import DecodeStatus, make_visible_text
from detok.detok_stats import DetokStats
from detok.full_fold import fold_from_log
from detok.tokenizer_cache import TokenizerCache
from shared.broker.named_subjects import NamedSubjects
from shared.broker.piece_chain import PieceChain
from shared.cluster import Cluster
from shared.errors import BrokerError, MalformedMessage, ProtocolError
from shared.protocol.codec import decode, encode
from shared.protocol.log_records import Claim
from shared.protocol.text import (
    Done,
    Held,
    ReplayReply,
    ReplayRequest,
    ReplayStatus,
    TextChunk,
    checksum,
    done_chunk,
)
from shared.subjects import is_rid
from shared.telemetry.log import get_logger

_PATIENCE_S = 1.0  # for a text that is being caught up with; askers wait half a second longer
_POLL_S = 0.02
_WAITING_TTL_S = 60.0
_MAX_WAITING = 10_000

log = get_logger(__name__)


class WaitingSubjects:
    """Who asked for requests that no worker has claimed yet."""

    def __init__(self) -> None:
        self._by_rid: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, rid: str, subject: str) -> None:
        if not subject:
            return
        self._by_rid[rid] = (time.monotonic(), subject)
        self._by_rid.move_to_end(rid)
        oldest_at = next(iter(self._by_rid.values()))[0]
        if len(self._by_rid) > _MAX_WAITING or time.monotonic() - oldest_at > _WAITING_TTL_S:
            self._by_rid.popitem(last=False)

    def take(self, rid: str) -> str | None:
        """The subject that waits for this request, if it has not waited too long."""
        if not self._by_rid or rid not in self._by_rid:
            return None
        asked_at, subject = self._by_rid.pop(rid)
        return subject if time.monotonic() - asked_at < _WAITING_TTL_S else None


class ReplayService:
    """`find` gives the live request, and `is_caught_up` whether the log is read to its end."""

    def __init__(
        self,
        cluster: Cluster,
        tokenizers: TokenizerCache,
        waiting: WaitingSubjects,
        stats: DetokStats,
        find: Callable[[str], DecodeStatus | None],
        is_caught_up: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._named = NamedSubjects(cluster.subjects)
        self._tokenizers = tokenizers
        self._waiting = waiting
        self._stats = stats
        self._find = find
        self._is_caught_up = is_caught_up

    async def answer(self, message: Msg) -> None:
        """Never raises: who gets no answer asks again."""
        try:
            request = self._read(message)
            reply = _piece_of(await self._reply_to(request), request)
            if request.others:
                reply = msgspec.structs.replace(reply, changed=self._changed(request))
            await message.respond(encode(reply))
            self._stats.replays += 1
        except (ProtocolError, BrokerError, nats.errors.Error) as exc:
            if isinstance(exc, ProtocolError):
                self._cluster.malformed.note(message.subject, exc)
            log.warning("replay_failed", error=repr(exc))

    def _read(self, message: Msg) -> ReplayRequest:
        """Raises ProtocolError: subjects are made of the id, and others are published to."""
        request = decode(ReplayRequest, message.data)
        if not is_rid(request.rid):
            raise MalformedMessage(f"request id {request.rid[:40]!r} is not 32 hex digits")
        if request.subject and not self._named.is_text_subject(request.subject):
            raise MalformedMessage(f"text subject {request.subject[:80]!r}")
        if not self._named.is_role_inbox(message.reply):
            raise MalformedMessage(f"reply subject {message.reply[:80]!r}")
        return request

    def _changed(self, request: ReplayRequest) -> list[str]:
        return [held.rid for held in request.others if not self._is_unchanged(held, request)]

    def _is_unchanged(self, held: Held, request: ReplayRequest) -> bool:
        status = self._find(held.rid)
        if status is None:
            return False
        status.add_subject(request.subject)
        return self._is_current(status) and status.has_published(held.text_len, held.checksum)

    async def _reply_to(self, request: ReplayRequest) -> ReplayReply:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            status = self._find(request.rid)
            if status is not None:
                status.add_subject(request.subject)
                if self._is_current(status):
                    return _live_reply(status, request.offset)
            elif self._is_caught_up():
                return await self._reply_about_unknown(request, deadline)
            if time.monotonic() > deadline:
                return ReplayReply(ReplayStatus.RUNNING, None if status is None else status.reply)
            await asyncio.sleep(_POLL_S)

    def _is_current(self, status: DecodeStatus) -> bool:
        """Whether its text holds all that the log holds: else the asker would see a mismatch."""
        if not self._is_caught_up() or status.is_partial:
            return False
        return status.bring_up_to_date(self._tokenizers)

    async def _reply_about_unknown(self, request: ReplayRequest, deadline: float) -> ReplayReply:
        rid = request.rid
        done = await read_done(self._cluster, rid)
        if done is not None:
            return _done_reply(done, request.offset)
        fold = await fold_from_log(self._cluster, rid)
        if fold is None:
            self._waiting.add(rid, request.subject)
            return ReplayReply(ReplayStatus.QUEUED)
        # Its DONE may have been written while we read; its claim may just be on the way to us.
        done = await read_done(self._cluster, rid)
        if done is not None:
            return _done_reply(done, request.offset)
        self._waiting.add(rid, request.subject)
        claims = [
            stored.record
            for stored in await self._cluster.ownership.read(rid)
            if isinstance(stored.record, Claim)
        ]
        if not claims:
            return ReplayReply(ReplayStatus.RUNNING)
        claim = claims[-1]
        tokenizer = self._tokenizers.get(claim.tokenizer_hash)
        while tokenizer is None and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            tokenizer = self._tokenizers.get(claim.tokenizer_hash)
        if tokenizer is None:
            return ReplayReply(ReplayStatus.RUNNING, claim.reply)
        visible = make_visible_text(tokenizer, claim.text)
        for token_id in fold.tokens:
            visible.add(token_id)
        if fold.finish is not None:
            visible.finish()
        status = ReplayStatus.RUNNING if fold.finish is None else ReplayStatus.DONE
        start = min(request.offset, visible.visible_len)
        chunk = TextChunk(
            rid,
            len(fold.tokens),
            start,
            visible.text_from(start),
            fold.tokens,
            fold.finish,
            bytes(fold.logprobs),
            fold.prompt_logprobs,
            checksum(visible.text[:start]),
        )
        return ReplayReply(status, claim.reply, chunk)


async def read_done(cluster: Cluster, rid: str) -> Done | None:
    """The finished result, if it is stored and not yet expired. Raises BrokerError."""
    subjects = cluster.subjects
    record = await PieceChain(cluster.js, subjects.results_stream).read(subjects.done(rid))
    return None if record is None else decode(Done, record)


def _piece_of(whole: ReplayReply, request: ReplayRequest) -> ReplayReply:
    """As much of a reply as one message has room for."""
    chunk = whole.chunk
    if chunk is None or request.position < 0:
        return whole
    first, *rest = pieces_of(chunk_from(chunk, request.position))
    # The reply data may be large too, and so may a finish.
    reply = whole.reply if request.position == 0 else None
    return ReplayReply(whole.status, reply, first, has_more=bool(rest))


def _live_reply(status: DecodeStatus, offset: int) -> ReplayReply:
    is_finished = status.fold.finish is not None
    return ReplayReply(
        ReplayStatus.DONE if is_finished else ReplayStatus.RUNNING,
        status.reply,
        status.replay_chunk(offset),
    )


def _done_reply(done: Done, offset: int) -> ReplayReply:
    return ReplayReply(ReplayStatus.DONE, done.reply, done_chunk(done, offset))
