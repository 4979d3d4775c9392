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

from shared.errors import BrokerError, BrokerUnavailable, CasConflict, LimitReached
from shared.event_wait import raise_if_cancelled

ERR_WRONG_LAST_SEQUENCE = 10071
ERR_WRONG_LAST_SEQUENCE_CLUSTER = 10164
ERR_NO_MESSAGE = 10037
ERR_STORE_FAILED = 10077  # the stream's limits, but also whatever else keeps it from storing

HEADER_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
HEADER_MSG_ID = "Nats-Msg-Id"

_CAS_ERRORS = (ERR_WRONG_LAST_SEQUENCE, ERR_WRONG_LAST_SEQUENCE_CLUSTER)
_AWAY = 503  # an error of this class passes: no leader, no quorum, not in time
_LIMIT = "maximum "  # messages exceeded, bytes exceeded, messages per subject exceeded


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


class JetStream:
    """JetStream over one connection. Every wait is bounded by `timeout_s`."""

    def __init__(self, nc: Client, timeout_s: float = 2.0) -> None:
        self.nc = nc
        self._timeout_s = timeout_s

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        expected_last: int | None = None,
        msg_id: str | None = None,
        ttl_s: int | None = None,
    ) -> PubAck:
        """Publish and wait until it is stored.

        `expected_last` makes it a compare-and-set on the subject's last sequence (0: empty).
        Raises CasConflict, BrokerError (refused) or BrokerUnavailable (outcome unknown).
        """
        headers: dict[str, str] = {}
        if expected_last is not None:
            headers[HEADER_EXPECTED_LAST] = str(expected_last)
        if msg_id is not None:
            headers[HEADER_MSG_ID] = msg_id
        if ttl_s is not None:
            headers["Nats-TTL"] = str(ttl_s)
        message = await self._request(subject, payload, headers or None)
        ack = parse_pub_ack(message.data)
        if ack.error is not None:
            raise _broker_error(ack.error)
        return ack

    async def get_last(self, stream: str, subject: str) -> StoredMessage | None:
        """Leader read of the last message on a subject."""
        return await self._get(stream, {"last_by_subj": subject})

    async def get_next(self, stream: str, subject: str, seq: int) -> StoredMessage | None:
        """Leader read of the first message on a subject (or wildcard) at `seq` or later."""
        return await self._get(stream, {"seq": max(seq, 1), "next_by_subj": subject})

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
            start = {"start_time": since.astimezone(datetime.UTC).isoformat()}
        while True:
            messages = await self._direct_batch(stream, subject, start, batch)
            for message in messages:
                yield message
            if len(messages) < batch:
                return
            start = {"seq": messages[-1].seq + 1}

    async def proven_scan(self, stream: str, subject: str) -> AsyncIterator[StoredMessage]:
        """The same with all that the leader held at the call, unless it is gone by now.

        Raises BrokerUnavailable at the end when a replica has answered that lags behind.
        """
        last = await self.get_last(stream, subject)
        seq = 0
        async for message in self.direct_scan(stream, subject):
            seq = message.seq
            yield message
        if last is not None and seq < last.seq:
            raise BrokerUnavailable(f"{stream} was read from a replica that lags behind")

    async def _direct_batch(
        self, stream: str, subject: str, start: dict[str, Any], batch: int
    ) -> list[StoredMessage]:
        inbox = self.nc.new_inbox()
        messages: list[StoredMessage] = []
        ended = asyncio.get_running_loop().create_future()

        async def on_message(message: Msg) -> None:
            headers = message.headers or {}
            if "Status" in headers:
                if not ended.done():
                    ended.set_result(headers["Status"])
                return
            messages.append(
                StoredMessage(
                    subject=headers["Nats-Subject"],
                    seq=int(headers["Nats-Sequence"]),
                    data=message.data,
                    time=parse_time(headers["Nats-Time-Stamp"]),
                )
            )

        subscription = await self.nc.subscribe(inbox, cb=on_message)
        try:
            query = msgspec.json.encode({**start, "next_by_subj": subject, "batch": batch})
            await self.nc.publish(f"$JS.API.DIRECT.GET.{stream}", query, reply=inbox)
            async with asyncio.timeout(self._timeout_s):
                status = await ended
            if status not in ("204", "404"):
                raise BrokerError(f"direct get of {subject} answered status {status}")
        except TimeoutError as exc:
            raise BrokerUnavailable(f"no answer to a direct get of {subject}") from exc
        finally:
            await subscription.unsubscribe()
        return messages

    async def _get(self, stream: str, query: dict[str, Any]) -> StoredMessage | None:
        message = await self._request(
            f"$JS.API.STREAM.MSG.GET.{stream}", msgspec.json.encode(query), None
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
        payload = msgspec.json.encode(body) if body is not None else b""
        message = await self._request(f"$JS.API.{operation}", payload, None)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if error := answer.get("error"):
            raise _broker_error(msgspec.convert(error, ApiError))
        return answer

    async def server_time(self, stream: str) -> datetime.datetime:
        """By the clock that stamps the stream's messages. Raises BrokerError."""
        info = await self.api(f"STREAM.INFO.{stream}")
        return parse_time(info["ts"])

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> Msg:
        try:
            answer = await self.nc.request(subject, payload, self._timeout_s, headers=headers)
        except (NatsTimeoutError, NoRespondersError, OutboundBufferLimitError) as exc:
            raise BrokerUnavailable(f"no answer from JetStream on {subject}") from exc
        except ConnectionClosedError as exc:
            raise BrokerUnavailable("the connection to NATS is closed") from exc
        raise_if_cancelled()
        return answer


def _broker_error(error: ApiError) -> BrokerError:
    """What the server's error means to a caller."""
    if error.err_code in _CAS_ERRORS:
        return CasConflict(error.description, error.err_code)
    if error.err_code == ERR_STORE_FAILED and error.description.startswith(_LIMIT):
        return LimitReached(error.description, error.err_code)
    if error.code == _AWAY:
        return BrokerUnavailable(error.description, error.err_code)
    return BrokerError(error.description, error.err_code)


def parse_time(text: str) -> datetime.datetime:
    """RFC 3339 with up to nanoseconds, as the server writes it; microseconds are kept."""
    head, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(head).replace(tzinfo=datetime.UTC)
    return moment + datetime.timedelta(microseconds=int(fraction[:6].ljust(6, "0")))
