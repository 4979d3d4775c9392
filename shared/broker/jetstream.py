"""The few JetStream operations that jetflock is built on, with typed errors.

nats-py's own helpers parse headers and JSON generously; these go straight to the API subjects, so
that leader reads are leader reads and a refusal carries the server's error code.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext

from shared.broker.stream_info import ClockReading, parse_time
from shared.errors import (
    AlreadyStored,
    BrokerError,
    BrokerUnavailable,
    CasConflict,
    JetStreamAbsent,
    LimitReached,
)
from shared.event_wait import raise_if_cancelled
from shared.nats_client.connection_end import end_subscription
from shared.nats_client.prompt_client import prompt
from shared.subjects import api_prefix, written_subject

ERR_WRONG_LAST_SEQUENCE = 10071
ERR_WRONG_LAST_SEQUENCE_CLUSTER = 10164
ERR_NO_MESSAGE = 10037
ERR_STORE_FAILED = 10077  # the stream's limits, but also whatever else keeps it from storing

ERR_TOO_LARGE = 10054  # for the stream's own limit

HEADER_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
HEADER_EXPECTED_STREAM = "Nats-Expected-Stream"
HEADER_MSG_ID = "Nats-Msg-Id"

_CAS_ERRORS = (ERR_WRONG_LAST_SEQUENCE, ERR_WRONG_LAST_SEQUENCE_CLUSTER)
_AWAY = 503  # an error of this class passes: no leader, no quorum, not in time
# So do these, of other classes: a peer is away or joins, a leader has just changed.
_AWAY_ERRORS = {
    10005,  # no suitable peers for placement
    10007,  # cluster not assigned to this server
    10009,  # cluster can not handle request
    10041,  # an error of Raft
    10118,  # stream is offline
    10119,  # consumer is offline
}
_SHORT = "insufficient "  # storage, memory: there are peers, and none has room
_NOT_THERE = (ERR_NO_MESSAGE, 10043, 10057)  # to be deleted: sequence or message not found
_NO_MESSAGE = 0  # no message has this sequence
_LIMIT = "maximum "  # messages exceeded, bytes exceeded
_SUBJECT_TAKEN = "maximum messages per subject exceeded"


class ApiError(msgspec.Struct, frozen=True):
    """The `error` object of a JetStream answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    """The answer to a publish: stored at `seq`, or an error."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as the stream's leader holds it."""

    subject: str
    seq: int
    data: bytes
    time: datetime.datetime


class _RawMessage(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""


class _GetAnswer(msgspec.Struct, frozen=True):
    message: _RawMessage | None = None
    error: ApiError | None = None


_decode_ack = msgspec.json.Decoder(PubAck).decode
_decode_get = msgspec.json.Decoder(_GetAnswer).decode


def parse_pub_ack(data: bytes) -> PubAck:
    """The body of a publish acknowledgement; an unreadable one counts as an error."""
    try:
        return _decode_ack(data)
    except msgspec.DecodeError as exc:
        return PubAck(error=ApiError(description=f"unreadable acknowledgement: {exc}"))


class _BatchAnswer:
    """The messages of a batched direct get, and whether the server sent others between them.

    Each is a message of its own, which may be lost between servers; each, and the status at the
    end, names the sequence of the one before it.
    """

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_broken = False

    @prompt
    async def on_message(self, message: Msg) -> None:
        headers = message.headers or {}
        before = self.messages[-1].seq if self.messages else 0
        self.is_broken |= int(headers.get("Nats-Last-Sequence", "0")) != before
        if "Status" not in headers:
            self.messages.append(
                StoredMessage(
                    subject=headers["Nats-Subject"],
                    seq=int(headers["Nats-Sequence"]),
                    data=message.data,
                    time=parse_time(headers["Nats-Time-Stamp"]),
                )
            )
        elif not self.status.done():
            self.status.set_result(headers["Status"])


class JetStream:
    """JetStream over one connection, that of a domain or else the nearest. Every wait is bounded by
    `timeout_s`.

    What takes stored messages away goes by `erasing_nc`, whose user may do so; by default that is
    the same connection.
    """

    def __init__(
        self,
        nc: Client,
        timeout_s: float = 2.0,
        domain: str | None = None,
        erasing_nc: Client | None = None,
    ) -> None:
        self.nc = nc
        self.erasing_nc = erasing_nc or nc
        self.domain = domain
        self._timeout_s = timeout_s
        self._api_prefix = api_prefix(domain)
        self._clock_readings: dict[str, ClockReading] = {}  # stream -> the last one

    def context(self) -> JetStreamContext:
        """The same by nats-py's own means, for object stores: what writes to one, takes away."""
        return self.erasing_nc.jetstream(domain=self.domain)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        expected_last: int | None = None,
        msg_id: str | None = None,
        ttl_s: int | None = None,
        rolls_up: bool = False,
    ) -> PubAck:
        """Publish and wait until it is stored.

        `expected_last` makes it a compare-and-set on the subject's last sequence (0: empty).
        With `rolls_up` all earlier messages of the subject go.
        Raises CasConflict, BrokerError (refused) or BrokerUnavailable (outcome unknown).
        """
        headers: dict[str, str] = {}
        if expected_last is not None:
            headers[HEADER_EXPECTED_LAST] = str(expected_last)
        if msg_id is not None:
            headers[HEADER_MSG_ID] = msg_id
        if ttl_s is not None:
            headers["Nats-TTL"] = str(ttl_s)
        if rolls_up:
            headers["Nats-Rollup"] = "sub"
        target = written_subject(subject, self.domain)
        # Who may write it may take all away: it is the right of those who do that.
        nc = self.erasing_nc if rolls_up else self.nc
        message = await self._request(target, payload, headers or None, nc)
        ack = parse_pub_ack(message.data)
        if ack.error is not None:
            raise _broker_error(ack.error)
        return ack

    async def is_stored_somewhere(self, subject: str) -> bool:
        """Whether a stream of any JetStream that hears us takes this subject; stores nothing.

        A stream that others expect to be another one refuses, and says so.
        """
        try:
            answer = await self._request(subject, b"", {HEADER_EXPECTED_STREAM: "none"})
        except BrokerUnavailable:
            return False
        return parse_pub_ack(answer.data).stream != ""

    async def get_last(self, stream: str, subject: str) -> StoredMessage | None:
        """Leader read of the last message on a subject."""
        return await self._get(stream, {"last_by_subj": subject})

    async def get_next(self, stream: str, subject: str, seq: int) -> StoredMessage | None:
        """Leader read of the first message on a subject (or wildcard) at `seq` or later."""
        return await self._get(stream, {"seq": max(seq, 1), "next_by_subj": subject})

    async def get_at(self, stream: str, seq: int) -> StoredMessage | None:
        """Leader read of the message with this sequence."""
        return await self._get(stream, {"seq": seq})

    async def direct_scan(
        self,
        stream: str,
        subject: str,
        *,
        batch: int = 256,
        first_seq: int = 1,
        since: datetime.datetime | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """All messages of a subject by batched direct get; may be stale: never proof of absence.

        Only those at `first_seq` or later or, in its place, stored at `since` or later.
        """
        start: dict[str, Any] = {"seq": first_seq}
        if since is not None:
            start = _from_time(since)
        while True:
            messages = await self._direct_batch(stream, subject, start, batch)
            for message in messages:
                yield message
            if len(messages) < batch:
                return
            start = {"seq": messages[-1].seq + 1}

    async def proven_scan(
        self, stream: str, subject: str, *, first_seq: int = 1
    ) -> AsyncIterator[StoredMessage]:
        """The same with all that the leader held at the call, unless it is gone by now.

        Raises BrokerUnavailable at the end when a replica has answered that lags behind.
        """
        last = await self.get_last(stream, subject)
        seq = first_seq - 1
        async for message in self.direct_scan(stream, subject, first_seq=first_seq):
            seq = message.seq
            yield message
        if last is not None and seq < last.seq:
            raise BrokerUnavailable(f"{stream} was read from a replica that lags behind")

    async def direct_batch(
        self,
        stream: str,
        subject: str,
        seq: int,
        batch: int,
        *,
        since: datetime.datetime | None = None,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """The next messages of a subject from `seq` on, in order and none left out; fewer than
        `batch` when there are no more, when the replica that answers lags behind, or, of
        `max_bytes`, when these are sent. With `since` from that time on, in the place of `seq`.
        """
        start: dict[str, Any] = {"seq": seq} if since is None else _from_time(since)
        if max_bytes is not None:
            start["max_bytes"] = max_bytes
        return await self._direct_batch(stream, subject, start, batch)

    async def erase(self, stream: str, subject: str, *, below: int | None = None) -> int:
        """Delete all messages of a subject, those below a sequence alone if one is given, and
        overwrite their bytes, which a purge leaves in the server's files; how many there were.

        No compare-and-set behind what is gone can be stored any more: see `purge_for_good`.
        Raises BrokerError.
        """
        num_erased = 0
        while num_found := await self._erase_stored(stream, subject, below):
            num_erased += num_found
            await self.settle(stream)
        return num_erased

    async def _erase_stored(self, stream: str, subject: str, below: int | None) -> int:
        num_erased, seq = 0, 1
        while (message := await self.get_next(stream, subject, seq)) is not None:
            if below is not None and message.seq >= below:
                break
            await self.erase_message(stream, message.seq)
            num_erased, seq = num_erased + 1, message.seq + 1
        return num_erased

    async def settle(self, stream: str) -> None:
        """Return when all that the leader of several servers has taken up to now is stored.

        It stores and deletes in one order, and deleting no message is an order, too. Who asks must
        have the right to delete. Raises BrokerError.
        """
        await self.delete_message(stream, _NO_MESSAGE)

    async def erase_message(self, stream: str, seq: int) -> None:
        """Delete it, overwriting its bytes; also one that is not there any more.

        Raises BrokerError.
        """
        await self._delete(stream, {"seq": seq})

    async def delete_message(self, stream: str, seq: int) -> None:
        """It need not be there any more. Raises BrokerError."""
        await self._delete(stream, {"seq": seq, "no_erase": True})

    async def purge(self, stream: str, subject: str, *, below: int | None = None) -> int:
        """Take all messages of a subject (or wildcard) away, or those below a sequence; how many
        there were.

        Their bytes stay in the server's files for a while: see `erase`. Raises BrokerError.
        """
        bound = {} if below is None else {"seq": below}
        answer = await self._api(
            self.erasing_nc, f"STREAM.PURGE.{stream}", {"filter": subject, **bound}
        )
        return int(answer["purged"])

    async def purge_for_good(self, stream: str, subject: str, *, below: int | None = None) -> None:
        """Purges as `purge` does, and no compare-and-set behind what is gone can be stored any
        more.

        A leader of several servers compares what it stores before it applies the purge in front of
        it, and purges up to the last message that it had applied when it was asked. So behind the
        first purge nothing passes; with the answer to the second, what had passed is stored; and
        the third takes it away. Behind that, its writer may have passed meanwhile: so two purges in
        a row must have found nothing. Raises BrokerError.
        """
        num_empty = 0
        while num_empty < 2:
            num_purged = await self.purge(stream, subject, below=below)
            num_empty = 0 if num_purged else num_empty + 1

    async def _delete(self, stream: str, what: dict[str, Any]) -> None:
        try:
            await self._api(self.erasing_nc, f"STREAM.MSG.DELETE.{stream}", what)
        except BrokerError as exc:
            if exc.err_code not in _NOT_THERE:
                raise

    async def _direct_batch(
        self, stream: str, subject: str, start: dict[str, Any], batch: int
    ) -> list[StoredMessage]:
        inbox = self.nc.new_inbox()
        answer = _BatchAnswer()
        query = msgspec.json.encode({**start, "next_by_subj": subject, "batch": batch})
        try:
            subscription = await self.nc.subscribe(inbox, cb=answer.on_message)
        except ConnectionClosedError as exc:
            raise BrokerUnavailable("the connection to NATS is closed") from exc
        try:
            await self.nc.publish(f"{self._api_prefix}DIRECT.GET.{stream}", query, reply=inbox)
            async with asyncio.timeout(self._timeout_s):
                status = await answer.status
            if status not in ("204", "404"):
                raise BrokerError(f"direct get of {subject} answered status {status}")
            if answer.is_broken:
                raise BrokerUnavailable(f"of the messages of {subject} some were lost on their way")
        except (TimeoutError, ConnectionClosedError, OutboundBufferLimitError) as exc:
            raise BrokerUnavailable(f"no answer to a direct get of {subject}") from exc
        finally:
            await end_subscription(subscription)
        return answer.messages

    async def _get(self, stream: str, query: dict[str, Any]) -> StoredMessage | None:
        message = await self._request(
            f"{self._api_prefix}STREAM.MSG.GET.{stream}", msgspec.json.encode(query), None
        )
        answer = _decode_get(message.data)
        if answer.error is not None:
            if answer.error.err_code == ERR_NO_MESSAGE:
                return None
            raise _broker_error(answer.error)
        assert answer.message is not None
        raw = answer.message
        return StoredMessage(raw.subject, raw.seq, base64.b64decode(raw.data), parse_time(raw.time))

    async def api(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A management call, as `STREAM.INFO.<stream>`. Raises BrokerError with the err_code."""
        return await self._api(self.nc, operation, body)

    async def _api(self, nc: Client, operation: str, body: dict[str, Any] | None) -> dict[str, Any]:
        payload = msgspec.json.encode(body) if body is not None else b""
        message = await self._request(f"{self._api_prefix}{operation}", payload, None, nc)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if error := answer.get("error"):
            raise _broker_error(msgspec.convert(error, ApiError))
        return answer

    async def clock(self, stream: str, max_age_s: float = 0.0) -> ClockReading:
        """The clock that stamps the stream's messages, read at most `max_age_s` ago.

        Raises BrokerError. An old reading may be that of a leader which is none any more: good
        enough to see that a moment is far away, not to decide that it has come.
        """
        reading = self._clock_readings.get(stream)
        if reading is None or reading.reading_age_s >= max_age_s:
            reading = ClockReading.of_info(await self.api(f"STREAM.INFO.{stream}"))
            self._clock_readings[stream] = reading
        return reading

    def _unheard(self, subject: str) -> BrokerUnavailable:
        if self.domain is not None:  # the way there may only be cut
            return BrokerUnavailable(
                f"nobody hears {subject}: no server of JetStream domain {self.domain!r} is reached"
            )
        # A stream without a leader hears nothing either; its servers' API is heard.
        kind = JetStreamAbsent if subject.startswith(self._api_prefix) else BrokerUnavailable
        return kind(f"nobody hears {subject}")

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, nc: Client | None = None
    ) -> Msg:
        nc = nc or self.nc
        try:
            answer = await nc.request(subject, payload, self._timeout_s, headers=headers)
        except NoRespondersError as exc:
            raise self._unheard(subject) from exc
        except (NatsTimeoutError, OutboundBufferLimitError) as exc:
            raise BrokerUnavailable(f"no answer from JetStream on {subject}") from exc
        except ConnectionClosedError as exc:
            raise BrokerUnavailable("the connection to NATS is closed") from exc
        raise_if_cancelled()
        return answer


def _from_time(since: datetime.datetime) -> dict[str, Any]:
    return {"start_time": since.astimezone(datetime.UTC).isoformat()}


def _broker_error(error: ApiError) -> BrokerError:
    """What the server's error means to a caller."""
    if error.err_code in _CAS_ERRORS:
        return CasConflict(error.description, error.err_code)
    if error.err_code == ERR_STORE_FAILED and error.description == _SUBJECT_TAKEN:
        return AlreadyStored(error.description, error.err_code)
    if error.err_code == ERR_STORE_FAILED and error.description.startswith(_LIMIT):
        return LimitReached(error.description, error.err_code)
    if error.code == _AWAY or (error.err_code in _AWAY_ERRORS and _SHORT not in error.description):
        return BrokerUnavailable(error.description, error.err_code)
    return BrokerError(error.description, error.err_code)
