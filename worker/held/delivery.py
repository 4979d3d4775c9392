"""One delivery of a request from the queue: what the server says of it, and its acknowledgements.

The ack subject is only a subject: acks are not fenced (docs/protocol.md), so every caller must
have established first that the request is its own, or is over.
"""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, MalformedMessage
from shared.event_wait import raise_if_cancelled
from shared.protocol.codec import decode_request
from shared.protocol.request import GenerateRequest
from shared.subjects import Lane, is_rid, rid_of
from shared.telemetry.log import get_logger

_READING_S = 5.0  # one look at the clock serves all deliveries of so many seconds

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message of REQUESTS as it came to us."""

    data: bytes
    ack_subject: str
    num_delivered: int
    request_seq: int  # its sequence in REQUESTS
    queued_at: datetime.datetime  # server time of storing it
    rid: str  # of its subject: also when the payload cannot be read
    lane: Lane
    num_pending: int  # never delivered messages of its lane, at that moment
    # Another worker may have claimed under this very delivery. A nak would take the request from
    # it; who has not claimed says nothing, and `ack_wait` is the backstop.
    is_shared: bool = False

    @classmethod
    def from_msg(cls, message: Msg) -> Delivery:
        return cls.parse(message.data, message.reply, rid_of(message.subject))

    @classmethod
    def parse(cls, data: bytes, ack_subject: str, rid: str, *, is_shared: bool = False) -> Delivery:
        """Raises ValueError or IndexError for what is no ack subject."""
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>
        # or with <domain>.<account hash> before the stream, and a random token at the end.
        tokens = ack_subject.split(".")
        first = 4 if len(tokens) == 9 else 6
        return cls(
            data=data,
            ack_subject=ack_subject,
            num_delivered=int(tokens[first]),
            request_seq=int(tokens[first + 1]),
            queued_at=_time_of(int(tokens[first + 3])),
            rid=rid,
            lane=Lane.parse(tokens[first - 1].rpartition("_")[2]),  # consumer <pool>_<lane>
            num_pending=int(tokens[first + 4]),
            is_shared=is_shared,
        )

    @property
    def once_more(self) -> Delivery:
        """The same, of what somebody has run meanwhile: its ownership log is read first."""
        return dataclasses.replace(self, num_delivered=self.num_delivered + 1)

    def read_request(self) -> GenerateRequest:
        """Raises ProtocolError, also for what would be a trap further on."""
        request = decode_request(self.data)
        if not is_rid(request.rid):
            raise MalformedMessage(f"request id {request.rid[:40]!r} is not 32 hex digits")
        if request.rid != self.rid:
            raise MalformedMessage(f"request {request.rid} lies under the subject of another")
        if len(request.prompt_ids) % 4:
            raise MalformedMessage(f"a prompt of {len(request.prompt_ids)} bytes")
        if request.given is not None and len(request.given.token_ids) % 4:
            raise MalformedMessage(f"a given output of {len(request.given.token_ids)} bytes")
        return request


def _time_of(nanoseconds: int) -> datetime.datetime:
    """Raises ValueError for what is no time."""
    try:
        return datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.UTC)
    except (OverflowError, OSError) as exc:
        raise ValueError("a delivery without a time") from exc


class Acknowledger:
    """Tells the server what became of deliveries.

    Only `ack` can fail: without a nak or a sign of progress the ack wait gives the request back.
    """

    def __init__(self, nc: Client, timeout_s: float = 2.0) -> None:
        self._nc = nc
        self._timeout_s = timeout_s

    async def ack(self, delivery: Delivery) -> None:
        """Remove the request from the queue and wait for the confirmation.

        Raises BrokerUnavailable: the request may come again, and will then be found finished.
        """
        try:
            await self._nc.request(delivery.ack_subject, b"+ACK", self._timeout_s)
        except NatsError as exc:
            raise BrokerUnavailable(f"no answer to an ack: {exc}") from exc
        raise_if_cancelled()

    async def ack_over(self, delivery: Delivery) -> None:
        """Remove a request that is over; if that fails it comes again, and is found over again."""
        try:
            await self.ack(delivery)
        except BrokerError as exc:
            log.info("ack_failed", error=str(exc))

    async def nak(self, delivery: Delivery, delay_s: float = 0.0) -> None:
        """Give the request back: it is delivered again, to anybody, after the delay in seconds."""
        payload = b"-NAK"
        if delay_s > 0:
            payload += b" " + msgspec.json.encode({"delay": int(delay_s * 1e9)})
        await self._answer(delivery, payload)

    async def nak_unclaimed(self, delivery: Delivery, delay_s: float = 0.0) -> None:
        """Give back what has not come to a claim here: of a shared delivery nothing is said."""
        if not delivery.is_shared:
            await self.nak(delivery, delay_s)

    async def in_progress(self, delivery: Delivery) -> None:
        """Restart the server's ack wait."""
        await self._answer(delivery, b"+WPI")

    async def _answer(self, delivery: Delivery, payload: bytes) -> None:
        try:
            await self._nc.publish(delivery.ack_subject, payload)
        except NatsError as exc:
            log.warning("not_told", payload=payload.decode(), error=repr(exc))


async def waited_s(cluster: Cluster, request: GenerateRequest, delivery: Delivery) -> float:
    """Seconds since it was queued, and never more where they are more than its deadline.

    Raises BrokerError.
    """
    js, stream = cluster.js, cluster.subjects.requests_stream
    age_s = (await js.clock(stream, _READING_S)).age_s(delivery.queued_at)
    if age_s > request.deadline_s:
        age_s = (await js.clock(stream)).age_s(delivery.queued_at)
    return age_s


async def is_overdue(cluster: Cluster, request: GenerateRequest, delivery: Delivery) -> bool:
    """Whether the deadline has passed of a request that nobody here runs. Raises BrokerError."""
    return await waited_s(cluster, request, delivery) > request.deadline_s
