"""Asks detokenizers for text that was missed."""

from __future__ import annotations

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeoutError

from shared.codec import decode, encode
from shared.errors import BrokerUnavailable
from shared.protocol.text import ReplayReply, ReplayRequest
from shared.subjects import Subjects

_TIMEOUT_S = 1.5  # a detokenizer answers within its patience, or not at all


class DetokClient:
    """Request and reply with whichever detokenizer owns the partition of a request."""

    def __init__(self, nc: Client, subjects: Subjects, reply_subject: str) -> None:
        self._nc = nc
        self._subjects = subjects
        self._reply_subject = reply_subject

    async def replay(self, rid: str, offset: int, timeout_s: float = _TIMEOUT_S) -> ReplayReply:
        """The text from `offset` on; chunks that follow come to this frontend as well.

        Raises BrokerUnavailable when no detokenizer answers, MalformedMessage.
        """
        return await self._ask(ReplayRequest(rid, offset, self._reply_subject), timeout_s)

    async def look(self, rid: str, timeout_s: float = _TIMEOUT_S) -> ReplayReply:
        """How far it is, with all text so far; nothing follows. Raises as `replay` does."""
        return await self._ask(ReplayRequest(rid, 0, subject=""), timeout_s)

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
