"""Asks detokenizers for text that was missed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeoutError

from shared.errors import BrokerUnavailable, ProtocolError, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.protocol.text import Held, ReplayReply, ReplayRequest, ReplayStatus, TextChunk
from shared.subjects import Subjects

_TIMEOUT_S = 1.5  # a detokenizer answers within its patience, or not at all
_ATTEMPTS = 5
_RETRY_S = 0.5


class DetokClient:
    """Request and reply with whichever detokenizer owns the partition of a request."""

    def __init__(self, nc: Client, subjects: Subjects, reply_subject: str) -> None:
        self._nc = nc
        self._subjects = subjects
        self._reply_subject = reply_subject

    def partition(self, rid: str) -> int:
        """The partition of a request: one detokenizer owns each."""
        return self._subjects.partition(rid)

    async def replay(
        self,
        rid: str,
        offset: int,
        timeout_s: float = _TIMEOUT_S,
        *,
        follows: bool = True,
        others: Sequence[Held] = (),
    ) -> ReplayReply:
        """The text from `offset` on; chunks that follow come to this frontend as well, if it
        follows them: an answer that is to come in one piece does so no more then.

        `others`: requests of the same partition that the answer says more of, if there is more.
        Raises BrokerUnavailable when no detokenizer answers, MalformedMessage.
        """
        subject = self._reply_subject if follows else ""
        request = ReplayRequest(rid, offset, subject, position=0, others=list(others))
        return await self._ask_for_all(request, timeout_s)

    async def look(self, rid: str, timeout_s: float = _TIMEOUT_S) -> ReplayReply:
        """How far it is, with all text so far; nothing follows. Raises as `replay` does."""
        request = ReplayRequest(rid, 0, subject="", position=0)
        return await self._ask_for_all(request, timeout_s)

    async def text_so_far(self, rid: str) -> TextChunk | None:
        """All that the log has of it by now; None while it is queued.

        Asks again for some seconds. Raises ServiceUnavailable.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_RETRY_S)
            try:
                told = await self.look(rid)
            except ProtocolError as exc:
                raise ServiceUnavailable(f"The detokenizer's answer cannot be read: {exc}") from exc
            except BrokerUnavailable:
                continue
            if told.chunk is not None or told.status is ReplayStatus.QUEUED:
                return told.chunk
        raise ServiceUnavailable("No detokenizer tells the stream now.", retry_after_s=2)

    async def _ask_for_all(self, first: ReplayRequest, timeout_s: float) -> ReplayReply:
        """Piece by piece: text and tokens only grow, so that pieces of two moments fit together.

        Where one says that there is no text now, there is none: it is to be asked for again.
        """
        whole = await self._ask(first, timeout_s)
        chunks = [] if whole.chunk is None else [whole.chunk]
        has_more, changed = whole.has_more, whole.changed
        while has_more and chunks:
            last = chunks[-1]
            offset = last.offset + len(last.text)
            request = ReplayRequest(first.rid, offset, first.subject, last.position)
            piece = await self._ask(request, timeout_s)
            if piece.chunk is None:
                return ReplayReply(piece.status, whole.reply, changed=changed)
            if piece.chunk.offset > offset:
                raise BrokerUnavailable("the detokenizer has changed amid its answer")
            chunks.append(piece.chunk)
            whole, has_more = ReplayReply(piece.status, whole.reply), piece.has_more
        chunk = _joined(chunks) if chunks else None
        return ReplayReply(whole.status, whole.reply, chunk, changed=changed)

    async def _ask(self, request: ReplayRequest, timeout_s: float) -> ReplayReply:
        subject = self._subjects.replay(self._subjects.partition(request.rid))
        payload = encode(request)
        try:
            message = await self._nc.request(subject, payload, timeout_s)
        except NoRespondersError as exc:
            raise BrokerUnavailable("no detokenizer serves this partition") from exc
        except (NatsTimeoutError, OutboundBufferLimitError) as exc:
            raise BrokerUnavailable("no detokenizer answered in time") from exc
        except ConnectionClosedError as exc:
            raise BrokerUnavailable("the connection to NATS is closed") from exc
        return decode(ReplayReply, message.data)


def _joined(chunks: Sequence[TextChunk]) -> TextChunk:
    """One chunk of pieces that follow each other."""
    if len(chunks) == 1:
        return chunks[0]
    first, last = chunks[0], chunks[-1]
    token_ids: list[int] = []
    for chunk in chunks:
        token_ids += chunk.token_ids
    return TextChunk(
        first.rid,
        last.position,
        first.offset,
        "".join(chunk.text for chunk in chunks),
        token_ids,
        last.finish,
        b"".join(chunk.logprobs for chunk in chunks),
        first.prompt_logprobs,
        first.checksum,
    )
